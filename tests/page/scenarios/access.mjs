// Keys, colours, keyboards, phones, and pages that are turned off.
import assert from 'node:assert/strict';
import { answering, words } from '../front.mjs';
import { KEY, Sluice, status } from '../world.mjs';

const colour = (window) => window.page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
const isDark = (rgb) => Number(/\d+/.exec(rgb)[0]) < 100;

export default [
  {
    name: 'a key is asked for, and kept in the browser',
    options: { key: true, smoke: true },
    async run(window) {
      const { page } = window;
      const dialog = page.getByRole('dialog', { name: 'This server wants a key' });
      await dialog.waitFor();
      await window.isAccessible();
      await dialog.getByLabel('Key').fill('wrong');
      await window.button('Use this key', dialog).click();
      await dialog.getByText(/does not know/).waitFor();
      await dialog.getByLabel('Key').fill(KEY);
      await window.button('Use this key', dialog).click();
      await dialog.waitFor({ state: 'detached' });
      await page.getByRole('heading', { name: 'tale' }).waitFor();
      await page.reload();
      await page.getByRole('heading', { name: 'tale' }).waitFor();
      assert.equal(await dialog.count(), 0);
      await window.set({ 'Maximum tokens': 3 });
      await window.ask('Hello');
      assert.ok((await window.text()).length > 0);
      const with_key = window.front.requests.filter((one) => one.headers.authorization === `Bearer ${KEY}`);
      assert.ok(with_key.length >= 3);
      const panel = await window.settings();
      assert.equal(await panel.getByLabel('Key of this server').inputValue(), KEY);
    },
  },
  {
    name: 'behind a path, all requests stay below it',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 3 });
      await window.ask('Hello');
      const paths = new Set(window.front.requests.map((one) => one.path.split('?')[0]));
      for (const path of ['/v1/models', '/lora-adapters', '/props', '/v1/chat/completions']) assert.ok(paths.has(path), path);
      assert.ok(![...paths].some((path) => path.startsWith('OUTSIDE')), [...paths].join());
    },
  },
  {
    name: 'colours follow the system, or the choice of the reader',
    options: { context: { colorScheme: 'dark' } },
    async run(window) {
      assert.ok(isDark(await colour(window)));
      window.front.script = answering(words('`code`, **bold**, and\n\n```js\nconst a = 1; // one\n```'));
      await window.ask('Hello');
      await window.isAccessible();
      const panel = await window.settings();
      await window.isAccessible();
      await window.close();
      await panel.waitFor({ state: 'detached' });
      await window.button('Light colours').click();
      assert.ok(!isDark(await colour(window)));
      await window.isAccessible();
      await window.page.reload();
      await window.field.waitFor();
      assert.ok(!isDark(await colour(window)));
    },
  },
  {
    name: 'everything is reached by the keyboard',
    options: {},
    async run(window) {
      const { page } = window;
      const { keyboard } = page;
      window.front.script = answering(words('Yes.'), { pause: 50 });
      await window.field.focus();
      await keyboard.type('First line');
      await keyboard.press('Shift+Enter');
      await keyboard.type('second line');
      await keyboard.press(window.isPhone ? 'Control+Enter' : 'Enter');
      await page.getByText('Yes.', { exact: true }).waitFor();
      await window.written();
      assert.equal(window.front.chats[0].messages[0].content, 'First line\nsecond line');
      await keyboard.press('ArrowUp');
      await page.getByRole('textbox', { name: 'Edited message' }).waitFor();
      await keyboard.press('Escape');
      await page.getByRole('textbox', { name: 'Edited message' }).waitFor({ state: 'detached' });
      await keyboard.press('Alt+r');
      await page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      window.front.script = answering(words('This is a long answer of many words, one by one, that nobody waits for.'), { pause: 200 });
      await keyboard.press('Alt+r');
      await page.getByText('This is a').waitFor();
      await keyboard.press('Escape');
      await window.written();
      assert.ok(!(await window.text()).includes('waits'));
      await keyboard.press('Control+k');
      await page.waitForFunction(() => document.activeElement?.id === 'search');
      await keyboard.press('Escape');
      await keyboard.press('Alt+s');
      await page.getByRole('dialog', { name: 'Settings' }).waitFor();
      await keyboard.press('Escape');
      await page.getByRole('dialog').waitFor({ state: 'detached' });
      await page.evaluate(() => document.activeElement?.blur());
      await keyboard.press('?');
      await page.getByRole('dialog', { name: 'Keyboard and about' }).waitFor();
      await window.isAccessible();
      await keyboard.press('Escape');
      await page.getByRole('dialog').waitFor({ state: 'detached' });
      await keyboard.press('Alt+n');
      await page.getByRole('heading', { name: 'tale' }).waitFor();
      await keyboard.press('/');
      await page.waitForFunction(() => document.activeElement?.getAttribute('aria-label') === 'Message');
    },
  },
  {
    name: 'controls are large enough to be touched, and lists open over the page',
    options: { smoke: true },
    async run(window) {
      window.front.script = answering(words('Yes.'));
      await window.ask('Hello');
      const small = await window.page.evaluate(() => [...document.querySelectorAll('button, a, select, input')]
        .filter((one) => one.checkVisibility() && one.getBoundingClientRect().width > 0)
        .map((one) => [one.getAttribute('aria-label') ?? one.textContent, one.getBoundingClientRect()])
        .filter(([, box]) => box.width < 24 || box.height < 24)
        .map(([name, box]) => `${name}: ${box.width} x ${box.height}`));
      assert.deepEqual(small, []);
      const nav = await window.list();
      await window.isAccessible();
      if (window.isPhone) {
        await nav.getByRole('link', { name: 'Hello' }).tap();
        await nav.waitFor({ state: 'hidden' });
      } else {
        await window.button('Conversations').click();
        await nav.waitFor({ state: 'hidden' });
        await window.page.reload();
        await window.field.waitFor();
        assert.equal(await nav.isVisible(), false);
      }
    },
  },
  {
    name: 'a long conversation follows its end until the reader scrolls',
    options: {},
    async run(window) {
      const { page } = window;
      const line = 'A line of the answer that is long enough.\n\n';
      window.front.script = answering(Array.from({ length: 60 }, () => ({ content: line })), { pause: 20 });
      await window.ask('Long', { waits: false });
      const rest = () => page.evaluate(() => { const box = document.querySelector('.scroller'); return box.scrollHeight - box.scrollTop - box.clientHeight; });
      await page.waitForFunction(() => document.querySelector('.scroller').scrollTop > 100);
      assert.ok((await rest()) < 80);
      await page.evaluate(() => { document.querySelector('.scroller').scrollTop = 0; });
      await window.written();
      assert.equal(await page.evaluate(() => document.querySelector('.scroller').scrollTop), 0);
      await window.button('To the end').click();
      await page.waitForFunction(() => { const box = document.querySelector('.scroller'); return box.scrollHeight - box.scrollTop - box.clientHeight < 40; });
    },
  },
  {
    name: 'the page is off with --no-ui, and programs never get it',
    options: {},
    async run(window, { program, open }) {
      const browser = { accept: 'text/html', 'accept-encoding': 'gzip' };
      const reply = {};
      assert.equal(await status(open.port, '/', browser, reply), 200);
      assert.equal(reply['content-type'], 'text/html; charset=utf-8');
      assert.match(reply['content-security-policy'], /default-src 'none'/);
      await status(open.port, '/', { accept: '*/*' }, reply);
      assert.notEqual(reply['content-type'], 'text/html; charset=utf-8');
      const off = new Sluice(program, open.port + 5, ['--no-ui']);
      try {
        await off.ready();
        await status(off.port, '/', browser, reply);
        assert.notEqual(reply['content-type'], 'text/html; charset=utf-8');
      } finally {
        await off.stop();
      }
    },
  },
  {
    name: 'keys that type a character with Alt do nothing else, nor do keys of hidden buttons',
    options: {},
    async run(window) {
      window.front.script = answering([{ content: 'Let me see.' }, { tool_calls: [{ index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }] }], { finish: 'tool_calls' });
      await window.ask('Hello');
      const press = (code, key) => window.field.evaluate((field, init) => {
        field.focus();
        const event = new KeyboardEvent('keydown', { ...init, altKey: true, bubbles: true, cancelable: true });
        field.dispatchEvent(event);
        return event.defaultPrevented;
      }, { code, key });
      for (const [code, key] of [['KeyN', 'Dead'], ['KeyR', '®'], ['KeyS', 'ß'], ['KeyB', '∫'], ['KeyC', 'ç']]) {
        assert.equal(await press(code, key), false, key);
      }
      assert.equal(await press('KeyC', 'c'), false, 'an answer with calls does not go on');
      assert.equal(await window.replies.count(), 1);
      assert.equal(window.front.chats.length, 1);
      assert.equal(await press('KeyS', 's'), true);
      await window.page.getByRole('dialog', { name: 'Settings' }).waitFor();
    },
  },
  {
    name: 'each end of an answer is spoken, and how it ended',
    options: {},
    async run(window) {
      const { page } = window;
      await page.evaluate(() => {
        globalThis.said = [];
        const box = document.querySelector('.offscreen[role=status]');
        new MutationObserver(() => box.textContent.trim() && globalThis.said.push(box.textContent.trim())).observe(box, { childList: true, characterData: true, subtree: true });
      });
      const said = async (n) => {
        await page.waitForFunction((n) => globalThis.said.length >= n, n);
        return page.evaluate(() => globalThis.said);
      };
      window.front.script = answering(words('Yes.'));
      await window.ask('One');
      await said(1);
      await window.ask('Two');
      assert.deepEqual(await said(2), ['The answer is complete', 'The answer is complete']);
      window.front.script = async (body, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.end(`data: ${JSON.stringify({ error: { message: 'no memory', code: 500 } })}\n\n`);
      };
      await window.ask('Three');
      assert.equal((await said(3))[2], 'The answer failed');
    },
  },
  {
    name: 'the focus stays where a person works',
    options: {},
    async run(window) {
      const { page } = window;
      const { keyboard } = page;
      const focused = (label) => page.waitForFunction((label) => document.activeElement?.getAttribute('aria-label') === label, label);
      window.front.script = answering(words('Yes.'), { pause: 30 });
      await window.ask('Hello');
      await window.button('Edit', window.last).focus();
      await keyboard.press('Enter');
      await focused('Edited message');
      await keyboard.press('Escape');
      await focused('Edit');
      await window.button('Regenerate', window.last).focus();
      await keyboard.press('Enter');
      await page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      await page.waitForFunction(() => document.activeElement !== document.body);
      await window.button('Previous branch').focus();
      await keyboard.press('Enter');
      await page.getByRole('group', { name: 'Branch 1 of 2' }).waitFor();
      await page.waitForFunction(() => document.activeElement?.closest('article') !== null);
      // Without the clipboard's API, too; and only what was copied is called so.
      await page.evaluate(() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); });
      await window.button('Copy message', window.last).focus();
      await keyboard.press('Enter');
      await focused('Copied');
      await focused('Copy message');
      await page.evaluate(() => { document.execCommand = () => false; });
      await keyboard.press('Enter');
      await page.getByText('The browser does not let this page copy.').waitFor();
      assert.equal(await window.button('Copied').count(), 0);
      if (window.isPhone) {
        const nav = await window.list();
        assert.equal(await page.evaluate(() => document.querySelector('.page').inert), true);
        await page.waitForFunction(() => document.activeElement?.closest('nav') !== null);
        await keyboard.press('Escape');
        await nav.waitFor({ state: 'hidden' });
        await focused('Conversations');
      }
    },
  },
  {
    name: 'buttons keep their size beside a long name, on the smallest phone',
    options: {},
    async run(window) {
      const { page } = window;
      await page.route('**/v1/models', async (route) => {
        const response = await route.fetch();
        const body = await response.json();
        body.data[0].id = 'a-model-with-a-very-long-name-of-many-words-Q4_K_M-imatrix-00001';
        await route.fulfill({ response, json: body });
      });
      await page.setViewportSize({ width: 360, height: 640 });
      await page.reload();
      await page.getByRole('heading', { name: /a-model-with/ }).waitFor();
      const sizes = await page.locator('.bar .icon-button:visible').evaluateAll((all) => all.map((one) => one.getBoundingClientRect().width));
      assert.ok(sizes.every((width) => width >= 33), sizes.join());
    },
  },
];
