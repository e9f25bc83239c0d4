"""What counts as a secret, and what does not: docs/security.md has the rules."""

import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from profpipe import masking, plugins

ROOT = Path(__file__).resolve().parents[1]
TOKENS = [
    "hf_QwErTyUiOpAsDfGhJkLzXcVbNm1234", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "sk-proj-abcdefghijklmnopqrstuv",
    "github_pat_11AAAAAAA0abcdefghijkl_mnopqrstuvwxyz", "AKIAIOSFODNN7EXAMPLE", "xoxb-123456789012-abcdefGHIJKL",
    "glpat-ABCDEFGHijklmnop1234", "npm_abcdefghijklmnopqrstuvwxyz0123456789", "pypi-AgEIcHlwaS5vcmcCJGFiY2RlZg",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
]  # fmt: skip


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("text", ["{}", "refused {}.", "url?t={}&x=1", '{{"a": "{}"}}', "x={}\n"])
def test_a_token_is_known_by_its_form(token, text):
    assert token not in masking.mask_forms(text.format(token))
    assert "***" in masking.mask_forms(text.format(token))


_HEX = "4f9c2ab07d13e86b5a02"
#: What stands around a secret, and the secret.
KINDS = [
    *(("{}", token) for token in TOKENS),
    *(("{}", f"{begin}Rm5tYk8wQz3xVb7nLc2pHq4s") for begin in (
        "gldt-", "glrt-", "glcbt-64_", "gho_", "sk-ant-api03-", "nvapi-", "ya29.", "dckr_pat_", "wandb_v1_", "hf_",
    )),
    *(("{}", f"{begin}{_HEX}{_HEX}"[:length]) for begin, length in (("AIza", 39), ("xapp-1-A0B1C2D3E-", 57))),
    ('{{"api_key": "{}", "n": 1}}', "p9Rt4Wq7Lm2Xv8Zb5Nc3Hs6Jd1Kf0Gy"), ("MY_TOKEN={} x", _HEX),
    ("Authorization: Token {}", _HEX), ("{{'Authorization': 'Bearer {}'}}", _HEX), ("password: {}", "Gh64tYp7Sd"),
    ("postgres://bob:{}@db.example/x", "kite'Vq83mZt1"), ("redis://bob:{}@db.example/1", "Bn@Lw59xRc2"),
    ("amqp://bob:{}@db.example", "Zt/40pLw9xRc"), ("bob:{}@tcp(db.example:3306)/x", "Gh64tYp7Sd"),
    ("bob:{}@db.example/x", "Gh64tYp7Sd"), ("curl -u bob:{} x", "Gh64tYp7Sd"), ("x --auth=bob:{}", "Gh64tYp7Sd"),
    ("mysql -u bob -p{} x", "Gh64tYp7Sd"), ("run --api-key {} x", _HEX), ("['--hub-token', '{}']", _HEX),
    ("redis-cli -h db -a {} ping", "Gh64tYp7Sd"), ("<db:password>{}</db:password>", "Gh64tYp7Sd"),
    ("sqlplus scott/{}@db.example/x", "Gh64tYp7Sd"), ("jdbc:oracle:thin:scott/{}@//h:1521/x", "Gh64tYp7Sd"),
]  # fmt: skip
SURROUNDINGS = {
    "plain": lambda text, secret: f"got {text}",
    "colour": lambda text, secret: f"got\x1b[1;32m{text}\x1b[0mand",
    "colour around the secret": lambda text, secret: text.replace(secret, f"\x1b[38;5;9m{secret}\x1b(B\x1b[m"),
    "colour in the secret": lambda text, secret: text.replace(secret, f"{secret[:9]}\x1b[01;31m\x1b[K{secret[9:]}"),
    "colour written out": lambda text, secret: f"<U+001B>[32m{text}<U+001B>[0m \\033[1m{text}\\033[0m",
    "JSON": lambda text, secret: json.dumps({"log": f"first\n{text}\t", "colour": f"\x1b[32m{text}\x1b[0m"}),
    "JSON in JSON": lambda text, secret: json.dumps({"body": json.dumps({"log": f"first\n{text}"})}),
    "JSON in JSON in JSON": lambda text, secret: json.dumps(json.dumps(json.dumps(text))),
    "URL": lambda text, secret: f"GET /login?next={quote(f'/x?a= {text}', safe='')}",
    "repr": lambda text, secret: repr(f"header\t{text}"),
    "traceback": lambda text, secret: f"Traceback (most recent call last):\n  raise E\nE: {['a', text]!r}\n",
    "bytes": lambda text, secret: repr(f"\x1b[1mé\n{text}".encode()),
    "two lines": lambda text, secret: text.replace(half := secret[-len(secret) // 2 :], f"\n{half}"),
    "the next line": lambda text, secret: text.replace(": ", ":\n  ").replace("=", "=\\\n"),
}


def secrets_written(surrounding):
    """Yield each secret and a text with it. Only long ones that mix letters and digits are cut into two lines."""
    for text, secret in KINDS:
        is_mixed = re.search(r"[A-Za-z]\d+[A-Za-z]", secret[len(secret) // 2 :])
        if surrounding != "two lines" or (len(secret) >= 20 and is_mixed):
            yield secret, SURROUNDINGS[surrounding](text.format(secret), secret)


def shown_parts(secret, text):
    """Return the parts of ``secret``, at least half of it or 12 characters, that ``text`` shows."""
    size = min(12, len(secret) // 2)
    parts = {secret[begin : begin + size] for begin in range(len(secret) - size + 1)}
    return [part for part in parts if part in text]


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_a_secret_is_masked_whatever_is_written_around_it(surrounding):
    texts = list(secrets_written(surrounding))
    assert (
        len(texts) >= 20 and [text for secret, text in texts if shown_parts(secret, masking.mask_printed(text))] == []
    )


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgres://ann:Xq7pw@host/db", "postgres://ann:***@host/db"),
        ("redis://:Xq7pw@host", "redis://:***@host"),
        ("password=tr0ub4dor3xyz and", "password=*** and"),
        ("mysql -phunter2 x -pplain", "mysql -p*** x -pplain"),
        ("mysql -p*** x -pplain", "mysql -p*** x -pplain"),
        ("sshpass -p hunter2 ssh x -p 22", "sshpass -p *** ssh x -p 22"),
        ("&quot;token&quot;: &quot;4f9c2ab07d13e86b&quot;, 1", "&quot;token&quot;: &quot;***&quot;, 1"),
        ("Server=db;Pwd=4f9c2ab07d13;PWD=/home/4f9c2ab07d13", "Server=db;Pwd=***;PWD=/home/4f9c2ab07d13"),
        ("api_key: 'a1b2c3d4e5f6g7h8'", "api_key: '***'"),
        ("Set-Cookie: sid=4f9c2ab07d13; Path=/\nx", "Set-Cookie: ***\nx"),
        ("{'Cookie': 'a=1; sid=4f9c2ab07d13', 'n': 1}", "{'Cookie': '***', 'n': 1}"),
        ("Cookie: a=***", "Cookie: a=***"),
        ("<password>hunter2</password>", "<password>***</password>"),
        ("Authorization: Bearer a1b2c3d4e5f6g7h8", "Authorization: Bearer ***"),
        ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZTE=", "Basic ***"),
        ("authorization: basic a1b2c3d4e5f6g7h8", "authorization: basic ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nx", "***\nx"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "***"),
        ("MIIE\nMIIE\n-----END RSA PRIVATE KEY-----\nx", "***\nx"),
        ("MIIE\n-----END PRIVATE KEY-----\nx\n-----BEGIN PRIVATE KEY-----\nMIIE", "***\nx\n***"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOY\n-----END PGP PRIVATE KEY BLOCK-----\nx", "***\nx"),
    ],
)
def test_passwords_and_keys_are_known_by_what_stands_beside_them(text, masked):
    assert masking.mask_forms(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        *("impl=sdpa_flash,seqlen=4096", "task-parallel-scheduling-of-kernels", "ImportError: hf_hub_download", "sk-1"),
        *("Unexpected token: identifier expected", "http://localhost:8080/a@b", "git@github.com:owner/name", "token=1"),
        *(
            "max_tokens=131072",
            "password=${DB_PASSWORD}",
            "pg://me:${DB_PASS}@host",
            "token=secret-0123456789ab",
            "the key: value",
            "key=q",
        ),
        *("/home/me/.ssh/id_rsa", "0x7f3a9c21b0d4", "2026-11-20T05:55:00+00:00", "sm90_xmma_gemm_f16f16_f16f32_f32"),
        *("<password>${DB_PASS}</password>", "cookie: chocolate", "actions/checkout@v4", "meta/Llama3-8B@main"),
        *("basic QKV_proj_16x128", "Basic TransformerBlock2d", "docker://ubuntu:22.04@sha256:9f86d081884c7d659a2f"),
        *("author:bob123abc@example.org, ETag: 9f86d081884c7d65", "http://localhost:8080/x?at=a@b", "-p plain -p8080"),
        *("nvcr.io/nvidia/pytorch:24.01-py3@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",),
        *("id 550e8400-e29b-41d4-a716-446655440000 [00:12<00:34, 45.67it/s]", "cat 1b204f1a, base64 aGVsbG8gd29ybGQx"),
        *("    token = model2(torch.zeros(1, 8))[:, -1:]", "C:\\temp\\new\\x86\\hub", "--user 1000:1000 -u app:app"),
        *("the next token\nsm90_xmma_gemm_f16f16_f32", "got tokens\n9f86d081884c7d659a2feaa0c55ad015 image"),
    ],
)
def test_ordinary_texts_are_kept(text):
    assert masking.mask_forms(text) == text


@pytest.mark.parametrize("secret", ["pa\\b12345x", "Tr0ub\\adour&3"])
def test_a_backslash_of_a_known_secret_is_no_escape(secret):
    assert masking.masker({secret: "${DB}"}).mask(f"login {secret} failed") == "login ${DB} failed"


def test_the_pages_of_the_examples_hold_no_secret():
    pages = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".md", ".html", ".json", ".csv")]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    assert texts and [page for page, text in zip(pages, texts, strict=True) if masking.mask_forms(text) != text] == []


def test_the_rules_of_kernel_names_hold_no_secret():
    text = (plugins.builtin_folder("parsers") / "kernel_classes.yaml").read_text(encoding="utf-8")
    assert masking.mask_forms(text) == text


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("HF_TOKEN", "short1", ["short1"]),
        ("TOKENS", "a1,b2", ["a1,b2", "a1", "b2"]),
        ("MAX_TOKENS", "4096", []),
        ("API_KEY", "123456789012", ["123456789012"]),
        ("DB_PASS", "4096", ["4096"]),
        ("SSH_KEY", "/", []),
        ("TOKENIZER", "gpt2", []),
        ("KEYBOARD", "us", []),
        ("BATCH", "1,2,4,8,16,32,64,128", []),
        ("IMPLS", "sdpa_flash,sdpa_mem_efficient,fa2", []),
        ("MODEL", "a-model-with-a-long-name", ["a-model-with-a-long-name"]),
        ("MODELS", "small,a-model-with-a-long-name", ["small,a-model-with-a-long-name", "a-model-with-a-long-name"]),
        ("WHERE", "/tmp/a/folder/that/does/not/exist", []),
        ("PLACES", "/tmp/a/very/long/path:/tmp/another", []),
        ("URL", "pg://u:pw1234@h", ["pg://u:pw1234@h", "pw1234"]),
        ("EMPTY_TOKEN", "", []),
    ],
)
def test_the_value_of_a_variable_is_a_secret_by_name_length_or_form(name, value, secrets):
    assert masking.secrets_in_variable(name, value) == secrets


def test_a_path_is_no_secret(tmp_path):
    (tmp_path / "a-folder-with-a-long-name").mkdir()
    assert masking.secrets_in_variable("DATA", str(tmp_path / "a-folder-with-a-long-name")) == []
    assert masking.secrets_in_variable("DATA", "/not-a-folder-that-exists/at-all")


KEY = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"


@pytest.mark.parametrize(("option", "value", "is_secret"), [
    ("--wandb-key", KEY, True), ("--wandb_key", "hunter2", True), ("--azure-pat", KEY, True),
    ("--my-hf-token", "x", True), ("--sort-key", KEY, False), ("--train.order_key", "time2", False),
    ("--caption-key", "image_text", False), ("--num-key", "12", False), ("--path", KEY, False),
    ("--monkey", KEY, False), ("--host-key", __file__, False), ("--cfg.wandb.key", KEY, True),
    ("--dict-key", "layers.0.weight", False), ("--image_key", "jpg;png", False), ("--name-pat", "h[0-9]+", False),
])  # fmt: skip
def test_an_option_of_any_key_is_secret_unless_its_value_is_a_word_a_number_or_a_path(option, value, is_secret):
    assert masking.is_secret_option(option, value) is is_secret
    assert masking.is_secret_parameter(option.lstrip("-"), value) is is_secret
    assert bool(masking.assigned_secrets(f"{option}={value}")) is is_secret


@pytest.mark.parametrize(("option", "value", "is_secret"), [
    ("--auth", "bob:Gh64tYp7Sd", True), ("-u", "bob:Gh64tYp7Sd", True), ("--user", "1000:1000", False),
    ("--basic-auth=bob:Gh64tYp7Sd", "words", False), ("--where", "bob:Gh64tYp7Sd", False),
])  # fmt: skip
def test_an_option_with_a_user_and_a_random_password_is_secret(option, value, is_secret):
    assert masking.is_secret_option(option, value) is is_secret


@pytest.mark.parametrize(("name", "is_secret"), [
    ("token", True), ("hub_token", True), ("api-key", True), ("password", True), ("tokenizer", False),
    ("num_tokens", False), ("key", False), ("num_key_value_heads", False), ("tokens", False),
])  # fmt: skip
def test_a_parameter_is_secret_by_the_end_of_its_name(name, is_secret):
    assert masking.is_secret_parameter(name, "text") is is_secret
    assert not masking.is_secret_parameter(name, 4096) and not masking.is_secret_parameter(name, "")


@pytest.mark.parametrize("word", ["ACGT-", "my-token-", "%25", "\\\\", "\x1b[0m", "://a:", "a:b@c/d", "mysql "])
def test_a_long_line_of_words_and_hyphens_takes_no_quadratic_time(word):
    began = time.process_time()
    assert masking.mask_forms(line := word * 4_000) == line
    assert masking.mask_forms(f"{line}token=Xq7Vw2pLk9Ab") == f"{line}token=***"
    assert time.process_time() - began < 2


@pytest.mark.parametrize(("word", "secrets"), [
    ("--api-key=abc", ["abc"]),
    ("--wandb-key=hunter2", ["hunter2"]), ("--sort-key=a1b2c3d4e5f6", []),
    ("--my-hf-token=abc", ["abc"]), ("--caption_key=text_of_image", []),
    ("x --api-key abc --n 3", ["abc"]), ("x --hf-token  'a b' -n 3", ["a b"]), ("x --api-key --sort-key a1b2", []),
    ("DB_PASSWORD=a b", ["a b", "a"]), ("--export=ALL,HF_TOKEN=a-b,X=1", ["a-b"]),
    ("export A_SECRET='x y'; ./run", ["x y"]), ("--env=MY_KEY=k,OTHER=1", ["k"]),
    (r"export X_SECRET=foo\ bar; run", [r"foo\ bar"]), ('export X_SECRET="foo"bar x', ['foo"bar']),
    ("sh DB_PASSWORD=ab'c d' z", ["ab'c d"]), (r'sh A_TOKEN="a\"b c" z', [r'a\"b c']),
    ("MAX_TOKENS=4096", []), ("key=seqlen", []), ("SORT_KEY=$NAME", []), ("tokenizer=gpt2", []), ("a=1", []),
])  # fmt: skip
def test_secrets_are_found_in_the_assignments_of_a_word(word, secrets):
    assert list(masking.assigned_secrets(word)) == secrets
    hidden = masking.hide_assigned(word)
    assert (hidden == word) is (not secrets) and not any(f"={secret}" in hidden for secret in secrets)


@pytest.mark.parametrize(("line", "public"), [
    ("NUM_PASS=1 python x.py --mode 17", "NUM_PASS=1 python x.py --mode 17"),
    ("OPENAI_API_KEY=EMPTY python x.py --mode 7", "OPENAI_API_KEY=*** python x.py --mode 7"),
    (r"A_TOKEN=a\ b B_TOKEN='c d' ./x; C_TOKEN=e;./y", "A_TOKEN=*** B_TOKEN='***' ./x; C_TOKEN=***;./y"),
])  # fmt: skip
def test_a_line_of_a_shell_keeps_what_follows_an_assignment(line, public):
    assert masking.hide_assigned(line, before="-lc") == public


@pytest.mark.parametrize("word", ["TOKEN=", "a-", "a=", "-", "X_KEY=a ", ",A=", "'", "key", "X_KEY='a ", 'KEY="\\" '])
def test_assignments_of_a_long_word_take_no_quadratic_time(word):
    began = time.process_time()
    masking.hide_assigned(word * 50_000)
    masking.hide_option(word * 50_000)
    assert time.process_time() - began < 2


SECRET = 'pä"ss\\wörd,mit/Umlaut=%20'


@pytest.mark.parametrize("written", [
    SECRET, json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), repr(SECRET), quote(SECRET), quote(SECRET, "")
])  # fmt: skip
def test_a_known_secret_is_masked_in_every_usual_spelling(written):
    text = masking.Masker({SECRET: "${NAME}"}).mask(f"before {written} after")
    assert "${NAME}" in text and "Umlaut" not in text and text.startswith("before ") and text.endswith(" after")


def test_each_line_of_a_long_secret_is_masked():
    masker = masking.Masker({"first line\nsecond line\nx": "${KEY}"})
    assert masker.mask("got: second line") == "got: ${KEY}" and masker.mask("x") == "x"
    assert masker.mask_all({"second line": ["first line", 1, None]}) == {"${KEY}": ["${KEY}", 1, None]}


def test_the_longest_of_several_secrets_is_masked_first():
    assert masking.Masker({"secret": "A", "secret-more": "B"}).mask("secret-more secret") == "B A"


def test_a_digest_is_stable_for_a_salt_and_tells_nothing_without_it():
    assert masking.digest("x", b"salt") == masking.digest("x", b"salt") != masking.digest("x", b"other")
    assert masking.digest("x", b"salt") != masking.digest("y", b"salt")
    assert masking.mask_forms(f"token={masking.digest('x', b'salt')}") == f"token={masking.digest('x', b'salt')}"
