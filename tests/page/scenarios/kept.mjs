// What must not be lost: by typing, by imports, by other windows, or by a browser that cannot store.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { answering, chunksOf, stream, words } from '../front.mjs';
import { LLAMA_SERVER, load, twoChats } from './storage.mjs';

/** Another window of the same browser. */
async function second(window) {
  const page = await window.context.newPage();
  window.watch(page);
  await page.goto(window.front.url);
  await page.getByRole('textbox', { name: 'Message', exact: true }).waitFor();
  return page;
}

/** What the database of the page has. */
const stored = (page) => page.evaluate(() => new Promise((resolve) => {
  indexedDB.databases().then(([{ name }]) => {
    indexedDB.open(name).onsuccess = ({ target: { result } }) => {
      const transaction = result.transaction(['chats', 'messages']);
      const [chats, messages] = ['chats', 'messages'].map((store) => transaction.objectStore(store).getAll());
      transaction.oncomplete = () => {
        result.close();
        resolve({ chats: chats.result, messages: messages.result });
      };
    };
  });
}));

async function exported(window) {
  const nav = await window.list();
  const [download] = await Promise.all([window.page.waitForEvent('download'), window.button('Export all', nav).click()]);
  return JSON.parse(await readFile(await download.path(), 'utf8'));
}

/** Opens a conversation in the list. */
async function open(window, name) {
  const nav = await window.list();
  await nav.getByRole('link', { name, exact: true }).click();
}

const message = (id, more = {}) => ({ id, chat: 'c', parent: null, role: 'user', created: 1, content: `Text of ${id}`, ...more });
const chat = (id, messages, more = {}) => ({
  id, title: `Chat ${id}`, created: 1, updated: 1, leaf: messages.at(-1)?.id ?? null, settings: { system: '', params: {} }, messages, ...more,
});
const fileOf = (...conversations) => ({ format: 'sluice-conversations', version: 1, conversations });

async function oneWrites(window) {
  const TEXT = 'One two three four five six seven eight nine ten eleven twelve.';
  window.front.script = async (body, response) => stream(response, chunksOf(words(TEXT), { seed: body.seed }), { ids: true, pause: 250 });
  await window.ask('Count.', { waits: false });
  await window.page.getByText('One two three').waitFor();
  const other = await second(window);
  await other.goto(window.page.url());
  await other.reload();
  await other.getByText('Another window is writing this answer.').waitFor();
  assert.equal(await other.getByRole('button', { name: 'Continue', exact: true }).count(), 0);
  assert.equal(await other.getByRole('button', { name: 'Send', exact: true }).count(), 0);
  await other.getByRole('button', { name: 'Stop', exact: true }).click();
  await window.written();
  const text = await window.text();
  assert.ok(text.length < TEXT.length, text);
  // The other window goes on from what is stored, not from what it has seen.
  await other.getByRole('button', { name: 'Continue', exact: true }).waitFor();
  window.front.script = answering(words(' And more.'));
  await other.getByRole('button', { name: 'Continue', exact: true }).click();
  await window.page.getByText('2 parts').waitFor();
  assert.equal(await window.text(), `${text} And more.`);
  assert.equal(window.front.chats.length, 2);
  assert.equal(window.front.chats[1].messages.at(-1).content, text);
  // Deleted there, it is written no more here.
  window.front.script = answering(words(TEXT), { pause: 250 });
  await window.ask('Once more.', { waits: false });
  await window.page.getByText('One two three').last().waitFor();
  if (window.isPhone) await other.getByRole('button', { name: 'Conversations' }).click();
  await other.getByRole('link', { name: 'Count.' }).hover();
  await other.getByRole('button', { name: 'Delete Count.' }).click();
  await other.getByRole('button', { name: 'Delete', exact: true }).click();
  await window.page.getByRole('heading', { name: 'tale' }).waitFor();
  assert.equal(await window.button('Stop').count(), 0);
  assert.deepEqual(await stored(window.page), { chats: [], messages: [] });
  await other.close();
}

/** The scenario of two windows, where the browser has locks and where it has none: over plain HTTP from another machine. */
const twoWindows = (name, hasLocks) => ({
  name,
  options: {},
  async run(window) {
    if (!hasLocks) {
      await window.context.addInitScript(() => Object.defineProperty(Navigator.prototype, 'locks', { value: undefined }));
      await window.page.reload();
    }
    await oneWrites(window);
  },
});

export default [
  {
    name: 'what is typed elsewhere answers no question of the list',
    options: {},
    async run(window) {
      if (window.isPhone) return;
      await twoChats(window);
      const nav = await window.list();
      await nav.getByRole('link', { name: 'Pears' }).hover();
      await window.button('Delete Pears', nav).click();
      await window.button('Delete', nav).and(window.page.locator(':focus')).waitFor();
      window.front.script = answering(words('One two three four five six seven eight nine ten.'), { pause: 100 });
      await window.field.click();
      await window.page.keyboard.type('One more thing');
      await window.page.keyboard.press('Enter');
      await window.page.getByText('One two').waitFor();
      await window.page.keyboard.type('typed while an answer is written');
      await window.written();
      assert.equal(await window.field.inputValue(), 'typed while an answer is written');
      await window.button('Keep', nav).click();
      assert.equal((await stored(window.page)).chats.length, 2);
      // Nor does it go into a title or an edited message that loses the focus.
      await nav.getByRole('link', { name: 'Apples' }).hover();
      await window.button('Edit', window.last).click();
      await window.field.click();
      await window.page.keyboard.type(' and on');
      assert.equal(await window.field.inputValue(), 'typed while an answer is written and on');
    },
  },
  {
    name: 'an import that fails changes nothing',
    options: {},
    async run(window) {
      await load(window, fileOf(chat('a', [message('m1')])));
      await window.page.getByText('Imported 1 conversation with 1 message.').waitFor();
      const before = await stored(window.page);
      const bad = [
        [chat('a', [message('m1', { calls: {} })]), 'conversations[0].messages[0].calls has to be a list'],
        [chat('a', [message('m1', { runs: [{}] })]), 'messages[0].runs[0].fields has to be an object'],
        [chat('a', [message('m1', { runs: [{ fields: {}, system: '', from: 0, fromReasoning: 0, timings: {} }] })]), 'timings.cache_n has to be a number'],
        [chat('a', [message('m1', { files: [{ name: 'a' }] })]), 'files[0].text has to be a text'],
        [chat('a', [message('m1', { parent: 'm9' })]), 'a parent that is missing: m9'],
        [chat('a', [message('m1', { parent: 'm2' }), message('m2', { parent: 'm1' })]), 'is below itself'],
        [chat('a', [message('m1')], { leaf: 'm7' }), '(leaf) is missing'],
        [chat('a', [message('m1')], { settings: { system: 3, params: {} } }), 'settings.system has to be a text'],
      ];
      const log = window.page.getByRole('log');
      for (const [conversation, why] of bad) {
        await load(window, fileOf(conversation));
        await log.getByText(why).waitFor();
        await window.button('Close', log.locator('.notice', { hasText: why })).click();
      }
      await load(window, fileOf(chat('b', []), chat('b', [])));
      await log.getByText('Two conversations of this file have the id "b"').waitFor();
      await load(window, { ...fileOf(), version: 2 });
      await log.getByText('version 2').waitFor();
      assert.deepEqual(await stored(window.page), before);
      // The database fails in the middle: what was there stays.
      await window.page.evaluate(() => {
        const put = IDBObjectStore.prototype.put;
        IDBObjectStore.prototype.put = function (value) {
          if (value.content === 'Text of full') throw new DOMException('full', 'QuotaExceededError');
          return put.call(this, value);
        };
      });
      await load(window, fileOf(chat('a', [message('full')])));
      await log.getByText('Nothing was changed').waitFor();
      assert.deepEqual(await stored(window.page), before);
    },
  },
  {
    name: 'conversations of a file with the same message ids are kept apart',
    options: {},
    async run(window) {
      await load(window, fileOf(chat('a', [message('m1'), message('m2', { parent: 'm1', role: 'assistant' })])));
      await load(window, fileOf(chat('b c%', [message('m1', { content: 'Another' }), message('m2', { parent: 'm1', role: 'assistant' })])));
      await window.page.getByText('Imported 1 conversation with 2 messages.').waitFor();
      await open(window, 'Chat a');
      await window.page.getByText('Text of m1').waitFor();
      assert.equal(await window.page.locator('article').count(), 2);
      // An id may have any character.
      await open(window, 'Chat b c%');
      await window.page.getByText('Another').waitFor();
      await window.page.reload();
      await window.page.getByText('Another').waitFor();
      assert.equal(await window.page.locator('article').count(), 2);
    },
  },
  {
    name: 'a backup does not replace a conversation that has grown, unless a person says so',
    options: {},
    async run(window) {
      await twoChats(window);
      const backup = await exported(window);
      await open(window, 'Apples');
      await window.page.getByText('They are red.').waitFor();
      window.front.script = answering(words('Grown since.'));
      await window.ask('And now?');
      const asked = [];
      let answer = 'dismiss';
      window.page.on('dialog', (dialog) => {
        asked.push(dialog.message());
        return dialog[answer]();
      });
      await load(window, backup);
      await window.page.getByText('Imported 1 conversation with 2 messages.').waitFor();
      assert.match(asked[0], /newer messages than the file in “Apples”/);
      await window.page.getByText('Grown since.').waitFor();
      answer = 'accept';
      await load(window, backup);
      await window.page.getByText('Imported 2 conversations with 4 messages.').waitFor();
      await window.page.getByText('Grown since.').waitFor({ state: 'detached' });
      assert.equal((await stored(window.page)).messages.length, 4);
    },
  },
  {
    name: "llama-server's edited system prompt is the one of the branch that is shown",
    options: {},
    async run(window) {
      const [{ conv, messages }] = structuredClone(LLAMA_SERVER);
      messages.push(
        { id: 's2', convId: 'c1', type: 'system', role: 'system', content: 'Be long.', timestamp: 8, parent: 'm0', children: ['q2'] },
        { id: 'q2', convId: 'c1', type: 'text', role: 'user', content: 'Again?', timestamp: 9, parent: 's2', children: [] },
      );
      conv.currNode = 'q2';
      await load(window, [{ conv, messages }]);
      await window.page.getByText('1 attachment that is not text and 1 system prompt of another branch were left out').waitFor();
      await open(window, 'From llama-server');
      const panel = await window.settings();
      assert.equal(await panel.getByLabel('System prompt').inputValue(), 'Be long.');
    },
  },
  twoWindows('a window leaves alone what another one writes, and can stop it', true),
  twoWindows('without locks, a window leaves alone what another one writes, too', false),
  {
    name: 'an answer goes on in another window when its own is closed',
    options: {},
    async run(window) {
      const TEXT = 'One two three four five six seven eight nine ten eleven twelve.';
      window.front.script = async (body, response, request) => {
        const after = request.headers['last-event-id'];
        const from = after === undefined ? 0 : Number(after.slice(2)) + 1;
        await stream(response, chunksOf(words(TEXT), { seed: body.seed }), { ids: true, pause: after ? 10 : 400, from });
      };
      const other = await second(window);
      await other.getByRole('textbox', { name: 'Message', exact: true }).fill('Count.');
      await other.getByRole('button', { name: 'Send', exact: true }).click();
      await other.getByText('One two three').waitFor();
      await window.goto(`#${new URL(other.url()).hash.slice(1)}`);
      await window.page.reload();
      await window.page.getByText('Another window is writing this answer.').waitFor();
      await other.close();
      await window.page.getByText(TEXT).waitFor();
      await window.written();
    },
  },
  {
    name: 'what one window imports or deletes is seen in another',
    options: {},
    async run(window) {
      await load(window, fileOf(chat('a', [message('m1'), message('m2', { parent: 'm1' })])));
      await open(window, 'Chat a');
      await window.page.getByText('Text of m2').waitFor();
      const other = await second(window);
      const given = fileOf(chat('a', [message('m3')], { updated: 2 }));
      await other.getByLabel('File to import').setInputFiles({ name: 'f.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(given)) });
      await window.page.getByText('Text of m3').waitFor();
      assert.equal(await window.page.locator('article').count(), 1);
      other.on('dialog', (dialog) => dialog.accept());
      await other.getByRole('button', { name: 'Settings', exact: true }).click();
      await other.getByRole('button', { name: 'Delete all conversations' }).click();
      await window.page.getByRole('heading', { name: 'tale' }).waitFor();
      const nav = await window.list();
      await nav.getByText('No conversation yet').waitFor();
      await other.close();
    },
  },
  {
    name: 'without a database, conversations last as long as the window, and can be exported',
    options: {},
    async run(window) {
      await window.context.addInitScript(() => {
        IDBFactory.prototype.open = () => { throw new DOMException('no', 'SecurityError'); };
      });
      await window.page.reload();
      await window.page.getByText(/does not let the page store/).waitFor();
      await twoChats(window);
      await open(window, 'Apples');
      await window.page.getByText('They are red.').waitFor();
      await open(window, 'Pears');
      await window.page.getByText('They are green, like limes.').waitFor();
      const { conversations } = await exported(window);
      assert.deepEqual(conversations.map((one) => one.messages.length), [2, 2]);
      await load(window, fileOf(chat('a', [message('m1')])));
      await open(window, 'Chat a');
      await window.page.getByText('Text of m1').waitFor();
    },
  },
  {
    name: 'what could not be stored is stored later, and why is said',
    options: {},
    async run(window) {
      await window.page.evaluate(() => {
        globalThis.fails = true;
        const put = IDBObjectStore.prototype.put;
        IDBObjectStore.prototype.put = function (value) {
          if (globalThis.fails) throw new DOMException('full', 'QuotaExceededError');
          return put.call(this, value);
        };
      });
      window.front.script = answering(words('Yes.'));
      await window.ask('Hello');
      const warning = window.page.getByText(/no more room/);
      await warning.waitFor();
      assert.equal((await stored(window.page)).messages.length, 0);
      await window.page.evaluate(() => { globalThis.fails = false; });
      await warning.waitFor({ state: 'detached' });
      assert.equal((await stored(window.page)).messages.length, 2);
      // Another program's request closes the database; the page opens it again.
      await window.page.evaluate(() => new Promise((done) => {
        indexedDB.databases().then(([{ name }]) => { indexedDB.deleteDatabase(name).onsuccess = done; });
      }));
      await window.button('New chat', window.page.getByRole('banner')).click();
      await window.ask('Again');
      assert.equal((await stored(window.page)).messages.length, 2);
      assert.equal(await window.page.locator('.warning').count(), 0);
    },
  },
  {
    name: 'a deleted message comes back',
    options: {},
    async run(window) {
      window.front.script = answering(words('One.'));
      await window.ask('First');
      await window.ask('Second');
      await window.questions.first().hover();
      await window.button('Delete this message and what follows it', window.questions.first()).click();
      await window.page.waitForFunction(() => document.querySelectorAll('article').length === 0);
      await window.page.getByText('Deleted 4 messages.').waitFor();
      await window.button('Undo').click();
      await window.page.waitForFunction(() => document.querySelectorAll('article').length === 4);
      while ((await stored(window.page)).messages.length < 4) await new Promise((done) => setTimeout(done, 20));
      await window.page.reload();
      await window.replies.nth(1).waitFor();
      assert.equal((await stored(window.page)).messages.length, 4);
    },
  },
  {
    name: 'no text stops the page: deep nesting, thousands of marks',
    options: {},
    async run(window) {
      const hard = ['> '.repeat(3000), '- '.repeat(3000), '_a'.repeat(20_000), '**a _b '.repeat(5000), '['.repeat(20_000), '`'.repeat(9000) + 'a'];
      for (const [i, text] of hard.entries()) {
        window.front.script = answering([{ content: `${text} end ${i}` }]);
        const begun = Date.now();
        await window.ask(`Question ${i}`);
        assert.ok(Date.now() - begun < 4000, `${text.slice(0, 10)}: ${Date.now() - begun} ms`);
      }
      window.front.script = answering(words('Still here.'));
      await window.ask('And now?');
      assert.equal(await window.text(), 'Still here.');
      await window.page.reload();
      await window.page.getByText('Still here.').waitFor();
      assert.equal(await window.replies.count(), hard.length + 1);
    },
  },
];
