// Servers, the browser, and what scenarios do in it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const ROOT = new URL('../../', import.meta.url).pathname;
const TALE = `${ROOT}hosted/models/tale-5.8m-Q4_K_M.gguf`;
export const ADAPTER = `${ROOT}tests/fixtures/adapters/tale/one`;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
export const KEY = 'a-key-of-the-test';

export const SIZES = {
  desktop: { viewport: { width: 1280, height: 800 }, hasTouch: false, isMobile: false },
  phone: { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
};

/** A server on a port of its own. */
export class Sluice {
  constructor(program, port, more = []) {
    this.port = port;
    const command = ['serve', '-m', `tale=${TALE}`, '-m', `other=${TALE}`, '-c', '4096', '-np', '4', '--chat-template', 'chatml',
      '--lora-modules', `style=${ADAPTER}`, '--threads', '1', '--port', String(port), ...more];
    this.process = spawn(program, command, { stdio: ['ignore', 'ignore', 'pipe'] });
    this.log = '';
    this.process.stderr.on('data', (part) => (this.log += part));
  }

  async ready() {
    for (let i = 0; i < 300; i += 1) {
      if (this.process.exitCode !== null) throw new Error(`the server ended with ${this.process.exitCode}:\n${this.log}`);
      if ((await status(this.port, '/health')) === 200) return;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`the server is not ready:\n${this.log}`);
  }

  async stop() {
    this.process.kill('SIGTERM');
    if (this.process.exitCode === null) await new Promise((done) => this.process.once('exit', done));
  }
}

/** The status of a GET request; 0 if there is no answer. With `headers`, an object to which the reply's are added. */
export function status(port, path, headers = {}, reply = {}) {
  return new Promise((resolve) => {
    const request = http.get({ host: '127.0.0.1', port, path, headers }, (response) => {
      Object.assign(reply, response.headers);
      response.resume();
      resolve(response.statusCode);
    });
    request.on('error', () => resolve(0));
  });
}

export function launch() {
  const executablePath = process.env.SLUICE_CHROMIUM ?? '/usr/bin/chromium';
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
}

/** A window of the page, with what scenarios do in it. */
export class Window {
  /** What must not happen: errors, and requests to others. */
  problems = [];

  static async open(browser, front, size, options = {}) {
    const context = await browser.newContext({ ...SIZES[size], colorScheme: 'light', ...options });
    await context.grantPermissions(['clipboard-read', 'clipboard-write']);
    const window = new Window();
    Object.assign(window, { context, front, size });
    window.page = await context.newPage();
    window.watch(window.page);
    await window.goto();
    return window;
  }

  watch(page) {
    page.setDefaultTimeout(15_000);
    page.on('pageerror', (error) => this.problems.push(`error: ${error.stack}`));
    page.on('console', (message) => {
      const text = message.text();
      // The browser itself reports statuses and lost connections, which scenarios bring about.
      if (message.type() === 'error' && !/^Failed to load resource|ERR_/.test(text)) this.problems.push(`console: ${text}`);
    });
    page.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith(this.front.url) && !/^(blob|data):/.test(url)) this.problems.push(`a request to ${url}`);
    });
  }

  async goto(hash = '') {
    await this.page.goto(this.front.url + hash);
    await this.field.waitFor();
  }

  get isPhone() { return this.size === 'phone'; }
  get field() { return this.page.getByRole('textbox', { name: 'Message', exact: true }); }
  get replies() { return this.page.getByRole('article', { name: 'Answer' }); }
  get questions() { return this.page.getByRole('article', { name: 'You' }); }
  get last() { return this.replies.last(); }

  button(name, within = this.page) { return within.getByRole('button', { name, exact: true }); }

  /** Sends a message, and waits for its answer unless told not to. */
  async ask(text, { waits = true } = {}) {
    const n = await this.replies.count();
    await this.field.fill(text);
    await this.button('Send').click();
    await this.replies.nth(n).waitFor();
    if (waits) await this.written();
  }

  /** Waits until nothing is being written. */
  async written() {
    await this.page.locator('.reply[aria-busy=true]').waitFor({ state: 'detached', timeout: 60_000 });
    await this.page.locator('.message').last().waitFor();
  }

  /** The text of an answer without what stands below it. */
  async text(reply = this.last) { return (await reply.locator('.markdown').last().textContent()).trim(); }

  async settings() {
    await this.button('Settings').click();
    return this.page.getByRole('dialog', { name: 'Settings' });
  }

  /** Closes a dialog. */
  async close() { await this.page.keyboard.press('Escape'); }

  /** Sets parameters in the settings. */
  async set(values) {
    const panel = await this.settings();
    for (const [label, value] of Object.entries(values)) await panel.getByLabel(label, { exact: true }).fill(String(value));
    await this.close();
  }

  /** Lets answers be long enough to be stopped. */
  async endless() {
    const panel = await this.settings();
    await panel.getByText('More samplers').click();
    await panel.getByLabel('ignore_eos', { exact: true }).selectOption('true');
    await panel.getByLabel('Maximum tokens', { exact: true }).fill('3000');
    await this.close();
  }

  /** Shows the list of conversations, which covers the page on a phone. */
  async list() {
    const nav = this.page.getByRole('navigation', { name: 'Conversations' });
    if (!(await nav.isVisible())) await this.button('Conversations').click();
    await nav.waitFor();
    return nav;
  }

  /** Fails if axe-core finds anything, or the page can be moved sideways. */
  async isAccessible() {
    await this.page.evaluate(AXE);
    const { violations } = await this.page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
    const found = violations.map((one) => `${one.id}: ${one.help}\n  ${one.nodes.map((node) => node.html.slice(0, 200)).join('\n  ')}`);
    assert.deepEqual(found, [], `axe-core:\n${found.join('\n')}`);
    const over = await this.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(over <= 0, `the page is ${over} px too wide`);
  }

  async end() {
    await this.isAccessible();
    assert.deepEqual(this.problems, []);
    const outside = this.front.requests.filter((one) => one.path.startsWith('OUTSIDE'));
    assert.deepEqual(outside.map((one) => one.path), [], 'requests outside of the prefix');
  }
}
