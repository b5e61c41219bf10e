// Conversations in the browser.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { answering, words } from '../front.mjs';

/** Two conversations: about apples, and about pears. */
export async function twoChats(window) {
  window.front.script = answering(words('They are red.'));
  await window.ask('Apples');
  await window.button('New chat', window.page.getByRole('banner')).click();
  window.front.script = answering(words('They are green, like limes.'));
  await window.ask('Pears');
}

export const file = (value) => ({ name: 'file.json', mimeType: 'application/json', buffer: Buffer.from(JSON.stringify(value)) });
export const load = (window, value) => window.page.getByLabel('File to import').setInputFiles(file(value));

/** What llama-server's page exports: a root above all, a system message, a branch, a file, a call with its result. */
export const LLAMA_SERVER = [{
  conv: { id: 'c1', name: 'From llama-server', lastModified: 1700000000000, currNode: 'm7' },
  messages: [
    { id: 'm0', convId: 'c1', type: 'root', role: 'system', content: '', timestamp: 1, parent: null, children: ['m1'] },
    { id: 'm1', convId: 'c1', type: 'system', role: 'system', content: 'Be brief.', timestamp: 2, parent: 'm0', children: ['m2'] },
    { id: 'm2', convId: 'c1', type: 'text', role: 'user', content: 'What is in it?', timestamp: 3, parent: 'm1', children: ['m3', 'm4'],
      extra: [{ type: 'TEXT', name: 'a.txt', content: 'alpha' }, { type: 'IMAGE', name: 'b.png', base64Url: 'data:image/png;base64,AA==' }] },
    { id: 'm3', convId: 'c1', type: 'text', role: 'assistant', content: 'An old answer.', timestamp: 4, parent: 'm2', children: [], model: 'x' },
    { id: 'm4', convId: 'c1', type: 'text', role: 'assistant', content: '', timestamp: 5, parent: 'm2', children: ['m5'],
      reasoningContent: 'Hm.', toolCalls: JSON.stringify([{ id: 'k1', type: 'function', function: { name: 'read', arguments: '{"a":1}' } }]) },
    { id: 'm5', convId: 'c1', type: 'text', role: 'tool', content: 'alpha', toolCallId: 'k1', timestamp: 6, parent: 'm4', children: ['m7'] },
    { id: 'm7', convId: 'c1', type: 'text', role: 'assistant', content: 'Alpha.', timestamp: 7, parent: 'm5', children: [],
      timings: { predicted_n: 2, predicted_ms: 10 } },
  ],
}];

export default [
  {
    name: 'conversations stay in the browser, and have addresses',
    options: { smoke: true },
    async run(window) {
      await twoChats(window);
      const { page } = window;
      await page.reload();
      await page.getByText('They are green, like limes.').waitFor();
      assert.match(page.url(), /#\/[\da-f]{24}$/);
      const nav = await window.list();
      assert.deepEqual(await nav.getByRole('link').allTextContents(), ['Pears', 'Apples']);
      await nav.getByRole('link', { name: 'Apples' }).click();
      await page.getByText('They are red.').waitFor();
      await page.goBack();
      await page.getByText('They are green, like limes.').waitFor();
      assert.equal(await page.title(), 'Pears · Sluice');
    },
  },
  {
    name: 'search finds titles and texts',
    options: {},
    async run(window) {
      await twoChats(window);
      const nav = await window.list();
      const search = nav.getByRole('searchbox', { name: 'Search conversations' });
      const found = async (text, expected) => {
        await search.fill(text);
        await window.page.waitForFunction((n) => document.querySelectorAll('.chats a').length === n, expected.length);
        assert.deepEqual(await nav.getByRole('link').allTextContents(), expected);
      };
      await found('appl', ['Apples']);
      await found('LIMES', ['Pears']);
      await found('they are', ['Pears', 'Apples']);
      await found('nowhere', []);
      await nav.getByText('Nothing found').waitFor();
      await found('', ['Pears', 'Apples']);
    },
  },
  {
    name: 'a conversation is renamed and deleted',
    options: {},
    async run(window) {
      await twoChats(window);
      const nav = await window.list();
      await nav.getByRole('link', { name: 'Apples' }).hover();
      await window.button('Rename Apples', nav).click();
      await nav.getByLabel('New title').fill('Red fruit');
      await window.page.keyboard.press('Enter');
      await nav.getByRole('link', { name: 'Red fruit' }).waitFor();
      await nav.getByRole('link', { name: 'Pears' }).hover();
      await window.button('Delete Pears', nav).click();
      await window.isAccessible();
      await window.button('Keep', nav).click();
      await nav.getByRole('link', { name: 'Pears' }).hover();
      await window.button('Delete Pears', nav).click();
      await window.button('Delete', nav).click();
      await window.page.waitForFunction(() => document.querySelectorAll('.chats a').length === 1);
      await window.page.reload();
      await window.field.waitFor();
      assert.deepEqual(await (await window.list()).getByRole('link').allTextContents(), ['Red fruit']);
    },
  },
  {
    name: 'all conversations are exported, and read again in another browser',
    options: { smoke: true },
    async run(window) {
      await twoChats(window);
      const { page } = window;
      await window.button('Regenerate', window.last).click();
      await page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      let nav = await window.list();
      const [download] = await Promise.all([page.waitForEvent('download'), window.button('Export all', nav).click()]);
      assert.match(download.suggestedFilename(), /^sluice-conversations-\d{4}-\d\d-\d\d\.json$/);
      const exported = JSON.parse(await readFile(await download.path(), 'utf8'));
      assert.deepEqual(exported.conversations.map((chat) => chat.messages.length).sort(), [2, 3]);
      await page.evaluate(() => new Promise((done) => { indexedDB.databases().then((all) => { indexedDB.deleteDatabase(all[0].name).onsuccess = done; }); }));
      await window.goto('#');
      await page.reload();
      nav = await window.list();
      await nav.getByText('No conversation yet').waitFor();
      await load(window, exported);
      await page.getByText('Imported 2 conversations with 5 messages.').waitFor();
      await nav.getByRole('link', { name: 'Pears' }).click();
      await page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      // The seed came along, so the text can still be proved.
      await window.button('run again', window.last).click();
      await window.last.getByText(/✓ same text/).waitFor();
    },
  },
  {
    name: "llama-server's export is read",
    options: {},
    async run(window) {
      await load(window, LLAMA_SERVER);
      await window.page.getByText('Imported 1 conversation with 5 messages; 1 attachment that is not text was left out.').waitFor();
      const nav = await window.list();
      await nav.getByRole('link', { name: 'From llama-server' }).click();
      await window.page.getByText('Alpha.', { exact: true }).waitFor();
      assert.equal(await window.page.getByRole('article', { name: 'Result' }).count(), 1);
      assert.equal(await window.page.locator('.call code').first().textContent(), 'read');
      await window.page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      window.front.script = answering(words('Beta.'));
      await window.ask('And then?');
      const { messages } = window.front.chats[0];
      assert.deepEqual(messages.map((message) => message.role), ['system', 'user', 'assistant', 'tool', 'assistant', 'user']);
      assert.equal(messages[0].content, 'Be brief.');
      assert.ok(messages[1].content.startsWith('a.txt:\n```\nalpha\n```'));
      await window.button('Previous branch').click();
      await window.page.getByText('An old answer.').waitFor();
      for (const [wrong, why] of [[{ a: 1 }, /no conversations of this page or of llama-server/], [[1], /no conversations/]]) {
        await load(window, wrong);
        await window.page.getByRole('log').getByText(why).waitFor();
      }
    },
  },
  {
    name: 'two windows show the same conversations',
    options: {},
    async run(window) {
      const second = await window.context.newPage();
      window.watch(second);
      await second.goto(window.front.url);
      await second.getByRole('textbox', { name: 'Message', exact: true }).waitFor();
      window.front.script = answering(words('Yes.'));
      await window.ask('In the first window');
      if (window.isPhone) await second.getByRole('button', { name: 'Conversations' }).click();
      await second.getByRole('link', { name: 'In the first window' }).click();
      await second.getByText('Yes.', { exact: true }).waitFor();
      await second.close();
    },
  },
];
