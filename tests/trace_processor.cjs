// Runs the trace processor of Perfetto's web page, which is WebAssembly, in Node: requests of its RPC protocol on
// standard input, answers on standard output. The argument is the folder with the page's files.
const fs = require("fs");

process.chdir(process.argv[2]);
globalThis.self = globalThis;
console.log = console.warn = (line) => process.stderr.write(`${line}\n`);

const port = {postMessage: (answer) => fs.writeSync(1, Buffer.from(answer))};
new Function("require", "__dirname", fs.readFileSync("engine_bundle.js", "utf8"))(require, ".");
self.onmessage({data: {enginePort: port}});
// The module is ready once the handlers of its promises have run.
setTimeout(() => port.onmessage({data: new Uint8Array(fs.readFileSync(0))}), 0);
