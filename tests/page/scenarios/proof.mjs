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
  {
    name: 'a proof goes on while another conversation is shown',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 20 });
      await window.ask('Tell me a tale.');
      await window.button('Continue', window.last).click();
      await window.page.getByText('2 parts').waitFor();
      await window.written();
      const before = window.front.chats.length;
      window.front.script = async (body) => {
        // The second part is asked for when the other conversation is shown.
        if (window.front.chats.length === before + 1) await window.button('New chat', window.page.getByRole('banner')).click();
        return false;
      };
      await runAgain(window);
      await window.page.getByRole('heading', { name: 'tale' }).waitFor();
      while (window.front.chats.length < before + 2) await new Promise((done) => setTimeout(done, 50));
      const nav = await window.list();
      await nav.getByRole('link', { name: 'Tell me a tale.' }).click();
      await window.last.getByText(/✓ same text, 40 tokens/).waitFor();
    },
  },
  {
    name: 'a proof is forgotten when its text goes on, and parts of other models are named',
    options: {},
    async run(window) {
      window.front.script = answering(words('One two.'), { fingerprint: 'aaaaaaaa-c1' });
      await window.ask('Count.');
      await runAgain(window);
      await window.last.getByText(/✓ same text/).waitFor();
      await window.page.getByRole('combobox', { name: 'Model' }).selectOption('other');
      window.front.script = answering(words(' three.'), { fingerprint: 'bbbbbbbb-c1', model: 'other' });
      await window.button('Continue', window.last).click();
      await window.page.getByText('2 parts').waitFor();
      await window.written();
      assert.equal(await window.last.getByText(/✓ same text/).count(), 0);
      const text = await window.last.locator('.stats').textContent();
      const seeds = window.front.chats.map((body) => body.seed);
      assert.ok(text.includes(`part 1:taleseed ${seeds[0]}fingerprint aaaaaaaa`), text);
      assert.ok(text.includes(`part 2:otherseed ${seeds.at(-1)}fingerprint bbbbbbbb`), text);
    },
  },
];
