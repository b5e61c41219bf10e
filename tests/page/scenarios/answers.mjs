// What answers look like.
import assert from 'node:assert/strict';
import { answering, words } from '../front.mjs';

const MARKDOWN = `# Title

Some **bold** and *slanted* words, \`code\`, ~~gone~~, [a link](https://example.com/), [a trap](javascript:alert(1)).

<img src=x onerror="alert(1)"> <script>alert(2)</script>

![a picture](https://example.com/pixel.png)

1. one
2. two
   - inner

- [x] done
- [ ] open

> quoted

| name | size |
|:-----|-----:|
| a    | 1    |
| b    | 22   |

\`\`\`python
def f(x):
    # twice
    return "s" * 2
\`\`\`

The end &amp; more.`;

export default [
  {
    name: 'an answer is streamed, word by word',
    options: { smoke: true },
    async run(window) {
      await window.endless();
      await window.ask('Tell me a tale.', { waits: false });
      const { page } = window;
      await page.waitForFunction(() => (document.querySelector('.reply .markdown')?.textContent ?? '').length > 10);
      const early = await window.text();
      await page.waitForFunction((n) => document.querySelector('.reply .markdown').textContent.length > n + 10, early.length);
      await window.button('Stop').click();
      await window.written();
      const whole = await window.text();
      assert.ok(whole.length > early.length && whole.startsWith(early.slice(0, 5)), `${early}\n${whole}`);
      const [body] = window.front.chats;
      assert.equal(body.stream, true);
      assert.equal(body.messages.at(-1).content, 'Tell me a tale.');
    },
  },
  {
    name: 'an answer that is stopped keeps what has come, and the server ends it',
    options: { smoke: true },
    async run(window, { open }) {
      await window.endless();
      await window.ask('Tell me a long tale.', { waits: false });
      await window.page.waitForFunction(() => (document.querySelector('.reply .markdown')?.textContent ?? '').length > 20);
      await window.button('Stop').click();
      await window.written();
      assert.ok((await window.text()).length > 20);
      assert.equal(await window.page.locator('.failure').count(), 0);
      const until = Date.now() + 5000;
      const isBusy = async () => (await (await fetch(`http://127.0.0.1:${open.port}/slots`)).json()).some((slot) => slot.is_processing);
      while (await isBusy()) assert.ok(Date.now() < until, 'the server still writes');
      // The page goes on.
      await window.set({ 'Maximum tokens': 5 });
      await window.ask('And now?');
      assert.equal(await window.replies.count(), 2);
    },
  },
  {
    name: 'Markdown is drawn, and a model cannot put HTML into the page or load a picture',
    options: { smoke: true },
    async run(window) {
      window.front.script = answering(words(MARKDOWN));
      await window.ask('Show me.');
      const reply = window.last;
      await reply.getByRole('heading', { name: 'Title' }).waitFor();
      assert.equal(await reply.locator('strong').textContent(), 'bold');
      assert.equal(await reply.locator('em').textContent(), 'slanted');
      assert.equal(await reply.locator('del').textContent(), 'gone');
      assert.equal(await reply.locator('ol > li').count(), 2);
      assert.equal(await reply.locator('ol ul > li').count(), 1);
      assert.equal(await reply.locator('input[type=checkbox]').count(), 2);
      assert.equal(await reply.locator('blockquote').count(), 1);
      const link = reply.getByRole('link', { name: 'a link' });
      assert.equal(await link.getAttribute('href'), 'https://example.com/');
      assert.match(await link.getAttribute('rel'), /noopener/);
      assert.equal(await reply.getByRole('link', { name: 'a trap' }).count(), 0);
      assert.equal(await window.page.locator('.reply img, .reply script').count(), 0);
      const shown = await reply.locator('.markdown').textContent();
      assert.ok(shown.includes('<script>alert(2)</script>'), shown);
      assert.ok(shown.includes('The end & more.'), shown);
    },
  },
  {
    name: 'tables have headers and aligned columns',
    options: {},
    async run(window) {
      window.front.script = answering(words(MARKDOWN));
      await window.ask('Show me.');
      const table = window.last.getByRole('table');
      assert.deepEqual(await table.getByRole('columnheader').allTextContents(), ['name', 'size']);
      const cell = table.getByRole('cell', { name: '22' });
      assert.equal(await cell.evaluate((cell) => getComputedStyle(cell).textAlign), 'right');
      const wide = `| ${'column | '.repeat(30)}\n|${'---|'.repeat(30)}\n| ${'value | '.repeat(30)}`;
      window.front.script = answering([{ content: wide }]);
      await window.ask('Wider.');
      // It can be moved by itself, the page cannot.
      const box = window.last.locator('.table');
      assert.ok(await box.evaluate((box) => box.scrollWidth > box.clientWidth));
    },
  },
  {
    name: 'code has its colours, and a button that copies it',
    options: {},
    async run(window) {
      window.front.script = answering(words(MARKDOWN));
      await window.ask('Show me.');
      const code = window.last.locator('figure.code');
      assert.equal(await code.locator('figcaption span').textContent(), 'python');
      assert.equal(await code.locator('.k').first().textContent(), 'def');
      assert.equal(await code.locator('.c').textContent(), '# twice');
      assert.equal(await code.locator('.s').textContent(), '"s"');
      await window.button('Copy code', code).click();
      await window.button('Copied', code).waitFor();
      const copied = await window.page.evaluate(() => navigator.clipboard.readText());
      assert.equal(copied, 'def f(x):\n    # twice\n    return "s" * 2');
      await window.button('Copy message', window.last).click();
      assert.equal(await window.page.evaluate(() => navigator.clipboard.readText()), MARKDOWN);
    },
  },
  {
    name: 'reasoning is folded',
    options: {},
    async run(window) {
      const deltas = [...words('First I think **hard**.', 'reasoning_content'), ...words('Then I answer.')];
      window.front.script = answering(deltas, { pause: 30 });
      await window.ask('Think.', { waits: false });
      await window.page.getByText('Reasoning…').waitFor();
      await window.written();
      const fold = window.last.locator('details.reasoning');
      assert.equal(await fold.getAttribute('open'), null);
      assert.equal(await window.text(), 'Then I answer.');
      await fold.locator('summary').click();
      assert.equal(await fold.locator('strong').isVisible(), true);
      window.front.script = answering(words('Yes.'));
      await window.ask('Sure?');
      assert.equal(window.front.chats[1].messages[1].reasoning_content, 'First I think **hard**.');
    },
  },
  {
    name: 'calls of tools are shown, and their results are given back',
    options: { smoke: true },
    async run(window) {
      const tools = [{ type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } } }];
      const panel = await window.settings();
      const field = panel.getByLabel('Tools, as a JSON list');
      await field.fill('[oops');
      await panel.getByText(/not JSON/).waitFor();
      await field.fill(JSON.stringify(tools));
      await window.close();
      const call = (index, id, name) => ({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] });
      const part = (index, text) => ({ tool_calls: [{ index, function: { arguments: text } }] });
      const deltas = [call(0, 'call_a', 'weather'), part(0, '{"city":'), part(0, '"Bern"}'), call(1, 'call_b', 'weather'), part(1, '{"city":"Rome"}')];
      window.front.script = answering(deltas, { finish: 'tool_calls' });
      await window.ask('Weather in Bern and Rome?');
      assert.deepEqual(window.front.chats[0].tools, tools);
      const calls = window.last.locator('.call');
      assert.equal(await calls.count(), 2);
      assert.match(await calls.first().locator('pre').textContent(), /"city": "Bern"/);
      const results = window.last.getByLabel('Result of weather');
      await results.nth(0).fill('rain');
      await results.nth(1).fill('sun');
      window.front.script = answering(words('Rain in Bern, sun in Rome.'));
      await window.button('Send the results', window.last).click();
      await window.page.getByText('Rain in Bern, sun in Rome.').waitFor();
      const { messages } = window.front.chats[1];
      assert.deepEqual(messages.map((message) => message.role), ['user', 'assistant', 'tool', 'tool']);
      assert.deepEqual(messages[1].tool_calls[0], { id: 'call_a', type: 'function', function: { name: 'weather', arguments: '{"city":"Bern"}' } });
      assert.deepEqual(messages[3], { role: 'tool', tool_call_id: 'call_b', content: 'sun' });
    },
  },
  {
    name: 'text files are picked, dropped and sent, and other files are refused',
    options: {},
    async run(window) {
      const { page } = window;
      const files = [
        { name: 'notes.md', mimeType: 'text/markdown', buffer: Buffer.from('# Notes\n```\nx\n```\n') },
        { name: 'picture.png', mimeType: 'image/png', buffer: Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 0xff, 0xfe]) },
      ];
      await page.locator('.composer input[type=file]').setInputFiles(files);
      await page.getByText('picture.png is not a text file.').waitFor();
      await window.button('Close', page.getByRole('log')).click();
      const dropped = await page.evaluateHandle(() => {
        const all = new DataTransfer();
        all.items.add(new File(['a,b\n1,2\n'], 'table.csv', { type: 'text/csv' }));
        return all;
      });
      await page.dispatchEvent('main', 'dragover', { dataTransfer: dropped });
      await page.getByText('Drop text files here').waitFor();
      await page.dispatchEvent('main', 'drop', { dataTransfer: dropped });
      await page.locator('.composer .files').getByText('table.csv').waitFor();
      await page.locator('.composer .files').getByText('notes.md').waitFor();
      window.front.script = answering(words('Read.'));
      await window.ask('What is in them?');
      const sent = window.front.chats[0].messages[0].content;
      assert.ok(sent.includes('notes.md:\n````\n# Notes\n```\nx\n```\n````'), sent);
      assert.ok(sent.includes('table.csv:\n```\na,b\n1,2\n```'), sent);
      assert.ok(sent.endsWith('What is in them?'), sent);
      const shown = window.questions.locator('details');
      assert.equal(await shown.count(), 2);
      await shown.first().locator('summary').click();
      await shown.first().getByText('# Notes').waitFor();
    },
  },
  {
    name: 'speed, time to the first token, cached tokens and accepted drafts are shown',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 40, Seed: 3 });
      await window.ask('Tell me a tale of a little dog and a little cat.');
      const stats = window.last.locator('.stats');
      assert.match(await stats.textContent(), /[\d.]+ tok\/s/);
      assert.match(await stats.textContent(), /\d+(\.\d+)? m?s to first token/);
      assert.match(await stats.textContent(), /\d+ tokens?/);
      await window.ask('Go on.');
      const [, cached, all] = /(\d+)\/(\d+) cached/.exec(await window.last.locator('.stats').textContent());
      assert.ok(Number(cached) > 0 && Number(cached) < Number(all), `${cached}/${all}`);
      window.front.script = answering(words('a b c d'), { timings: { draft_n: 20, draft_n_accepted: 13 } });
      await window.ask('With drafts.');
      assert.match(await window.last.locator('.stats').textContent(), /98\.7 tok\/s.*12\/42 cached.*4 tokens.*13\/20 drafts accepted/);
    },
  },
  {
    name: 'a table from a spreadsheet is pasted as text, a file as a file',
    options: {},
    async run(window) {
      const paste = (isText) => window.field.evaluate((field, isText) => {
        const all = new DataTransfer();
        all.items.add(new File(['x,y'], 'cells.csv', { type: 'text/csv' }));
        if (isText) all.setData('text/plain', 'x\ty');
        const event = new ClipboardEvent('paste', { clipboardData: all, bubbles: true, cancelable: true });
        field.dispatchEvent(event);
        return event.defaultPrevented;
      }, isText);
      // The browser itself puts the text into the field, unless it is told not to.
      assert.equal(await paste(true), false);
      assert.equal(await paste(false), true);
      await window.page.locator('.composer .files').getByText('cells.csv').waitFor();
      assert.equal(await window.page.locator('.composer .files li').count(), 1);
    },
  },
  {
    name: 'numbers, formulas and code are shown as they were written',
    options: {},
    async run(window) {
      const call = { index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '{"id":12345678901234567890,"list":[1.0,{}],"text":"a,b:{c}"}' } };
      window.front.script = answering([{ tool_calls: [call] }], { finish: 'tool_calls' });
      await window.ask('Call.');
      assert.equal(await window.last.locator('.call pre').textContent(),
        '{\n  "id": 12345678901234567890,\n  "list": [\n    1.0,\n    {}\n  ],\n  "text": "a,b:{c}"\n}');
      const rust = "fn f<'a>(x: &'a str) -> char { let y: &'static str = \"s\"; 'c' }";
      window.front.script = answering([{ content: `So \\(x_1^2 + y_1\\) and \\[a*b*c\\] hold.\n\n\`\`\`rust\n${rust}\n\`\`\`` }]);
      await window.ask('Show.');
      assert.equal(await window.last.locator('.markdown > p').textContent(), 'So \\(x_1^2 + y_1\\) and \\[a*b*c\\] hold.');
      assert.deepEqual(await window.last.locator('.s').allTextContents(), ['"s"', "'c'"]);
    },
  },
];
