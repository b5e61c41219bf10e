// "Run again": the same seed gives the same text.
import assert from 'node:assert/strict';
import { answering, words } from '../front.mjs';

const runAgain = (window) => window.button('run again', window.last).click();

export default [
  {
    name: 'an answer shows its seed and fingerprint, and running it again proves the same text',
    options: { smoke: true },
    async run(window) {
      await window.set({ 'Maximum tokens': 60 });
      await window.ask('Tell me a tale.');
      const stats = window.last.locator('.stats');
      const seed = /seed (\d+)/.exec(await stats.textContent())[1];
      assert.equal(Number(seed), window.front.chats[0].seed);
      const { data } = await (await fetch(`${window.front.url}v1/models`)).json();
      const fingerprint = data[0].system_fingerprint;
      assert.ok((await stats.textContent()).includes(`fingerprint ${fingerprint.slice(0, 8)}`));
      await stats.getByRole('button', { name: /^fingerprint/ }).click();
      assert.equal(await window.page.evaluate(() => navigator.clipboard.readText()), fingerprint);
      const before = await window.text();
      await runAgain(window);
      await window.last.getByText(/✓ same text, \d+ tokens/).waitFor();
      await runAgain(window);
      await window.last.getByText(/✓ same text, \d+ tokens, 2 times/).waitFor();
      assert.equal(await window.text(), before);
      const [first, second] = window.front.requests.filter((one) => one.path === '/v1/chat/completions');
      assert.equal(first.raw, second.raw, 'the same bytes are sent again');
    },
  },
  {
    name: 'an answer in two parts is proved part by part, also after a reload',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 20 });
      await window.ask('Tell me a tale.');
      await window.button('Continue', window.last).click();
      await window.page.getByText('2 parts').waitFor();
      await window.written();
      await window.page.reload();
      await window.last.waitFor();
      await runAgain(window);
      await window.last.getByText(/✓ same text, 40 tokens/).waitFor();
      assert.equal(window.front.chats.length, 4);
    },
  },
  {
    name: 'an answer that was stopped is proved as far as it goes',
    options: {},
    async run(window) {
      await window.endless();
      await window.ask('Tell me a long tale.', { waits: false });
      await window.page.waitForFunction(() => (document.querySelector('.reply .markdown')?.textContent ?? '').length > 60);
      await window.button('Stop').click();
      await window.written();
      await runAgain(window);
      await window.last.getByText(/✓ same text/).waitFor();
    },
  },
  {
    name: 'settings that change later do not change a proof',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 25, Temperature: 1.1 });
      await window.ask('Tell me a tale.');
      await window.set({ 'Maximum tokens': 3, Temperature: 0, 'System prompt': 'Be rude.' });
      await runAgain(window);
      await window.last.getByText(/✓ same text, 25 tokens/).waitFor();
      const [first, second] = window.front.chats;
      assert.deepEqual(first, second);
    },
  },
  {
    name: 'a text that differs is shown where it differs, with a fingerprint that changed',
    options: {},
    async run(window) {
      window.front.script = answering(words('The cat sat on the mat.'));
      await window.ask('Tell me.');
      window.front.script = answering(words('The cat sat on the hat.'), { fingerprint: 'another-c1' });
      await runAgain(window);
      await window.last.getByText(/✗ differs at character 20/).waitFor();
      await window.last.getByText(/fingerprint changed/).waitFor();
      assert.equal(await window.text(), 'The cat sat on the mat.');
      window.front.script = answering(words('The cat sat on the mat. And more.'));
      await runAgain(window);
      await window.last.getByText(/✗ differs at character 24/).waitFor();
    },
  },
];
