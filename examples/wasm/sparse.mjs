// The predecessor's two functions in JavaScript, over `sparse.rs`: `node sparse.mjs FILE.wasm [EXPECTED]`.
// With EXPECTED, the bits of the first outputs have to be those (tests/portable.sh passes the ones that x86-64 prints).
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const wasi = new WASI({ version: "preview1", returnOnExit: true });
const bytes = await readFile(process.argv[2]);
const { instance } = await WebAssembly.instantiate(bytes, wasi.getImportObject());
wasi.initialize(instance);
const wasm = instance.exports;

/** An engine that keeps the share `sparsity` of its neurons. */
function create_sparse_engine(input_dim, hidden_dim, sparsity) {
    const engine = wasm.create_sparse_engine(input_dim, hidden_dim, sparsity);
    if (engine === 0) throw new RangeError(`engine of ${input_dim}, ${hidden_dim}, ${sparsity}: dimensions from 1 that fit in memory, a share from 0 to 1`);
    return engine;
}

/** The output for `input`, a Float32Array. */
function infer(engine, input) {
    const n = input.length;
    const [from, to] = [wasm.sluice_floats(n), wasm.sluice_floats(n)];
    try {
        if (from === 0 || to === 0) throw new RangeError(`no memory for ${n} numbers`);
        new Float32Array(wasm.memory.buffer, from, n).set(input);
        if (!wasm.infer(engine, from, n, to)) {
            const text = new Uint8Array(wasm.memory.buffer, wasm.last_error(engine), wasm.last_error_len(engine));
            throw new RangeError(new TextDecoder().decode(text));
        }
        return new Float32Array(wasm.memory.buffer, to, n).slice();
    } finally {
        for (const floats of [from, to]) if (floats !== 0) wasm.sluice_release(floats, n);
    }
}

function refuses(what, run, text) {
    try {
        run();
    } catch (error) {
        if (error instanceof RangeError && error.message.includes(text)) return;
        throw error;
    }
    throw new Error(`${what} was not refused`);
}

const engine = create_sparse_engine(64, 256, 0.25);
const input = Float32Array.from({ length: 64 }, (_, i) => ((i * 37) % 64) / 32 - 1);
const output = infer(engine, input);
const again = infer(create_sparse_engine(64, 256, 0.25), input);
if (!output.every((x, i) => Object.is(x, again[i]))) throw new Error("two engines differ");
const bits = [...new Uint32Array(output.buffer, 0, 4)].map((x) => x.toString(16).padStart(8, "0")).join(" ");
if (process.argv[3] && process.argv[3] !== bits) throw new Error(`${bits}: expected ${process.argv[3]}`);
refuses("a network beyond memory", () => create_sparse_engine(65536, 65536, 0.5), "that fit in memory");
refuses("a share of 2", () => create_sparse_engine(64, 256, 2), "a share from 0 to 1");
refuses("a short input", () => infer(engine, input.slice(1)), "input has 63 elements: expected 64");
refuses("NaN", () => infer(engine, input.map((x, i) => (i === 5 ? NaN : x))), "input[5] is NaN");
console.log(`sparse engine in WebAssembly: ${bits}`);
