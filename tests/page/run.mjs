// Runs the page's scenarios in Chromium, at desktop and phone size, against a server of its own.
//
//   node run.mjs [--smoke] [--size desktop|phone] [--only TEXT|TEXT] [--built] [PROGRAM]
//
// PROGRAM is the server's program, target/release/sluice by default. SLUICE_CHROMIUM names the browser
// (/usr/bin/chromium). --smoke runs those scenarios that are marked so, and no others.
// --built takes the page from what its build wrote, in place of the program's: no Rust has to be compiled.
import { parseArgs } from 'node:util';
import { built, Front } from './front.mjs';
import { KEY, launch, SIZES, Sluice, Window } from './world.mjs';
import { scenarios } from './scenarios/index.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { smoke: { type: 'boolean' }, built: { type: 'boolean' }, size: { type: 'string' }, only: { type: 'string' }, port: { type: 'string' } },
});
const program = positionals[0] ?? new URL('../../target/release/sluice', import.meta.url).pathname;
const port = Number(values.port ?? 21700);
const open = new Sluice(program, port);
const locked = new Sluice(program, port + 1, ['--api-key', KEY]);
const front = new Front(port);
if (values.built) front.dist = built();
let browser;
let passed = 0;
let failed = 0;
try {
  await Promise.all([open.ready(), locked.ready(), front.listen(port + 2)]);
  browser = await launch();
  const sizes = Object.keys(SIZES).filter((size) => !values.size || values.size === size);
  for (const size of sizes) {
    for (const { name, run, options } of scenarios) {
      if (values.smoke && !options.smoke) continue;
      if (values.only && !values.only.split('|').some((text) => name.includes(text))) continue;
      const begun = Date.now();
      front.reset(options.key ? locked.port : open.port);
      let window;
      try {
        window = await Window.open(browser, front, size, options.context);
        await run(window, { program, open, locked, front });
        await window.end();
        passed += 1;
        console.log(`ok      ${size}: ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
      } catch (error) {
        failed += 1;
        console.log(`FAILED  ${size}: ${name}: ${error.stack}`);
        const picture = `/tmp/page-failed-${failed}.png`;
        if (window) await window.page.screenshot({ path: picture }).then(() => console.log(`        ${picture}`), () => {});
      }
      await window?.context.close();
    }
  }
} finally {
  await browser?.close();
  front.close();
  await Promise.all([open.stop(), locked.stop()]);
}
// As cargo's test binaries end, for who adds them up.
console.log(`test result: ${failed ? 'FAILED' : 'ok'}. ${passed} passed; ${failed} failed`);
process.exitCode = failed || !passed ? 1 : 0;
