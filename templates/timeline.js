"use strict";
// Draws the timelines of the page: each element with data-timeline stands after a script with its lanes as JSON.
