// Connections that break, servers that are away, and pages that are closed.
import assert from 'node:assert/strict';
import { answering, chunksOf, stream, words } from '../front.mjs';
import { ADAPTER, Sluice } from '../world.mjs';

const TEXT = 'One two three four five six seven eight nine ten eleven twelve.';

export default [
  {
    name: 'a stream that broke is taken up after its last event',
    options: { smoke: true },
    async run(window) {
      const asked = [];
      window.front.script = async (body, response, request) => {
        asked.push({ after: request.headers['last-event-id'], raw: request.raw });
        const from = asked.length === 1 ? 0 : Number(request.headers['last-event-id'].slice(2)) + 1;
        await stream(response, chunksOf(words(TEXT), { seed: body.seed }), { ids: true, pause: 5, from, upTo: from + 5 });
      };
      await window.ask('Count.');
      assert.equal(await window.text(), TEXT);
      assert.deepEqual(asked.map((one) => one.after), [undefined, 'e-4', 'e-9']);
      assert.ok(asked.every((one) => one.raw === asked[0].raw), 'the same body is sent again');
      assert.equal(await window.page.locator('.failure').count(), 0);
    },
  },
  {
    name: 'the server goes on with a stream that broke, with the same text',
    options: { smoke: true },
    async run(window) {
      await window.set({ 'Maximum tokens': 150, Seed: 7 });
      await window.ask('Tell me a tale.');
      const whole = await window.text();
      window.front.cuts = [4000, 9000, 2000];
      await window.button('Regenerate', window.last).click();
      await window.page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      assert.equal(await window.page.locator('.failure').count(), 0);
      assert.equal(await window.text(), whole);
      const asked = window.front.requests.filter((one) => one.path === '/v1/chat/completions').slice(1);
      assert.equal(asked.length, 4);
      assert.ok(asked.slice(1).every((one) => one.headers['last-event-id'] && one.raw === asked[0].raw));
    },
  },
  {
    name: 'a server that ended and starts again goes on, and one with another model does not',
    options: {},
    async run(window, { program, open }) {
      const port = open.port + 6;
      let server = new Sluice(program, port, ['--seed', '1']);
      try {
        await server.ready();
        window.front.reset(port);
        await window.set({ 'Maximum tokens': 400, Seed: 7 });
        await window.ask('Tell me a tale.');
        const whole = await window.text();
        for (const [more, isSame] of [[[], true], [['--lora', ADAPTER], false]]) {
          window.front.cuts = [20_000];
          await window.button('Regenerate', window.last).click();
          await window.page.getByText('Taking the answer up again').waitFor();
          await server.stop();
          server = new Sluice(program, port, more);
          await server.ready();
          await window.written();
          if (isSame) assert.equal(await window.text(), whole);
          else await window.last.getByRole('alert').waitFor();
        }
      } finally {
        await server.stop();
      }
    },
  },
  {
    name: 'an answer goes on when the page is opened again',
    options: {},
    async run(window) {
      let n = 0;
      window.front.script = async (body, response, request) => {
        n += 1;
        const after = request.headers['last-event-id'];
        const from = after === undefined ? 0 : Number(after.slice(2)) + 1;
        await stream(response, chunksOf(words(TEXT), { seed: body.seed }), { ids: true, pause: n === 1 ? 400 : 5, from });
      };
      await window.ask('Count.', { waits: false });
      await window.page.waitForFunction(() => document.querySelector('.reply .markdown')?.textContent.includes('five'));
      await window.page.reload();
      await window.page.getByText(TEXT).waitFor();
      await window.written();
      assert.equal(await window.text(), TEXT);
      assert.equal(n, 2);
    },
  },
  {
    name: 'a stream that cannot be taken up says so, and its text stays',
    options: {},
    async run(window) {
      window.front.script = async (body, response) => stream(response, chunksOf(words(TEXT)), { pause: 5, upTo: 6 });
      await window.ask('Count.');
      await window.last.getByRole('alert').getByText('The connection was lost.').waitFor();
      assert.equal(await window.text(), 'One two three four five');
      window.front.script = answering(words(' six.'));
      await window.button('Continue', window.last).click();
      await window.page.getByText('2 parts').waitFor();
      await window.written();
      assert.equal(await window.text(), 'One two three four five six.');
      assert.equal(await window.page.locator('.failure').count(), 0);
    },
  },
  {
    name: 'a server that stays away is left, and the stream can be taken up later',
    options: {},
    async run(window) {
      // Without waiting, so that all attempts take no time.
      await window.page.clock.install();
      let isAway = true;
      window.front.script = async (body, response, request) => {
        const after = request.headers['last-event-id'];
        if (after && isAway) {
          response.destroy();
          return;
        }
        const from = after ? Number(after.slice(2)) + 1 : 0;
        await stream(response, chunksOf(words(TEXT), { seed: body.seed }), { ids: true, pause: 20, from, upTo: after ? Infinity : 5 });
      };
      await window.ask('Count.', { waits: false });
      const failure = window.last.getByRole('alert').getByText('The connection was lost.');
      for (let i = 0; i < 60 && !(await failure.isVisible()); i += 1) {
        await window.page.clock.runFor(2000);
        await new Promise((done) => setTimeout(done, 50));
      }
      await failure.waitFor();
      isAway = false;
      await window.button('Take it up again', window.last).click();
      await window.page.clock.resume();
      await window.page.getByText(TEXT).waitFor();
      await window.written();
      assert.equal(await window.page.locator('.failure').count(), 0);
    },
  },
  {
    name: 'an answer that is being written is deleted',
    options: {},
    async run(window) {
      window.front.script = answering(words('A long answer, word by word, of which little is left.'), { pause: 150 });
      await window.ask('First', { waits: false });
      await window.page.getByText('A long').waitFor();
      await window.questions.first().hover();
      await window.button('Delete this message and what follows it', window.questions.first()).click();
      await window.page.waitForFunction(() => document.querySelectorAll('article').length === 0);
      await window.page.reload();
      await window.field.waitFor();
      assert.equal(await window.page.locator('article').count(), 0);
      // With its conversation, too.
      await window.ask('Second', { waits: false });
      await window.page.getByText('A long').waitFor();
      const nav = await window.list();
      await nav.getByRole('link', { name: 'Second' }).hover();
      await window.button('Delete Second', nav).click();
      await window.button('Delete', nav).click();
      await window.page.waitForFunction(() => !document.querySelector('article'));
      const left = await window.page.evaluate(() => new Promise((resolve) => {
        indexedDB.databases().then(([{ name }]) => {
          indexedDB.open(name).onsuccess = ({ target }) => {
            target.result.transaction('messages').objectStore('messages').count().onsuccess = (count) => resolve(count.target.result);
          };
        });
      }));
      assert.equal(left, 0);
    },
  },
  {
    name: 'another model behind the address is named when a stream is taken up',
    options: {},
    async run(window) {
      window.front.script = async (body, response, request) => {
        if (request.headers['last-event-id']) {
          response.writeHead(409, { 'content-type': 'application/json' });
          response.end(JSON.stringify({ error: { message: 'the stream was of another model' } }));
          return;
        }
        await stream(response, chunksOf(words(TEXT)), { ids: true, pause: 5, upTo: 6 });
      };
      await window.ask('Count.');
      await window.last.getByRole('alert').getByText('the stream was of another model').waitFor();
    },
  },
  {
    name: 'an error within a stream is shown',
    options: {},
    async run(window) {
      window.front.script = async (body, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(`data: ${JSON.stringify(chunksOf(words('Some'))[1])}\n\n`);
        response.end(`data: ${JSON.stringify({ error: { message: 'the expert could not be read', code: 500 } })}\n\n`);
      };
      await window.ask('Hello');
      await window.last.getByRole('alert').getByText('the expert could not be read').waitFor();
      assert.equal(await window.text(), 'Some');
    },
  },
  {
    name: 'a server that is away is waited for',
    options: {},
    async run(window) {
      window.front.isDown = true;
      await window.ask('Hello', { waits: false });
      await window.last.getByText('The connection was lost.').waitFor();
      window.front.script = answering(words('Here again.'));
      window.front.isDown = false;
      await window.written();
      assert.equal(await window.text(), 'Here again.');
    },
  },
  {
    name: 'the reading of a long prompt is shown',
    options: {},
    async run(window) {
      window.front.script = async (body, response) => {
        const chunks = chunksOf(words('Read.'));
        const of = (processed) => ({ ...chunks[0], prompt_progress: { total: 4000, cache: 1000, processed, time_ms: 1 } });
        await stream(response, [of(1000), of(2000), of(3000), ...chunks], { pause: 200 });
      };
      await window.ask('Long', { waits: false });
      await window.page.getByText('Reading 4000 tokens, 1000 of them cached').waitFor();
      const bar = window.page.getByRole('progressbar');
      assert.ok(Number(await bar.getAttribute('value')) >= 1000);
      await window.written();
      assert.equal(await window.text(), 'Read.');
    },
  },
  {
    name: 'a prompt that is too long is refused with its length',
    options: {},
    async run(window) {
      await window.ask('word '.repeat(9000));
      await window.last.getByRole('alert').getByText(/context/).waitFor();
    },
  },
  {
    name: 'a server that is starting again keeps the stream to be taken up',
    options: {},
    async run(window) {
      await window.page.clock.install();
      let status = 0;
      window.front.script = async (body, response, request) => {
        const after = request.headers['last-event-id'];
        if (after && status) {
          response.writeHead(status, { 'content-type': 'application/json' });
          response.end(JSON.stringify({ error: { message: `status ${status}` } }));
          return;
        }
        const from = after ? Number(after.slice(2)) + 1 : 0;
        await stream(response, chunksOf(words(TEXT), { seed: body.seed }), { ids: true, pause: 20, from, upTo: after ? Infinity : 5 });
      };
      status = 429;
      await window.ask('Count.', { waits: false });
      const until = async (text) => {
        const failure = window.last.getByRole('alert').getByText(text);
        for (let i = 0; i < 60 && !(await failure.isVisible()); i += 1) {
          await window.page.clock.runFor(2000);
          await new Promise((done) => setTimeout(done, 50));
        }
        await failure.waitFor();
      };
      await until('status 429');
      status = 503;
      await window.button('Take it up again', window.last).click();
      await until('The connection was lost.');
      status = 0;
      await window.button('Take it up again', window.last).click();
      await window.page.clock.resume();
      await window.page.getByText(TEXT).waitFor();
      await window.written();
      assert.equal(await window.page.locator('.failure').count(), 0);
    },
  },
  {
    name: 'a server that is away is asked again until it answers',
    options: {},
    async run(window) {
      window.front.script = async (body, response) => {
        window.front.isDown = true;
        await stream(response, chunksOf(words('Bye.')));
      };
      await window.ask('Hello');
      await window.button('New chat', window.page.getByRole('banner')).click();
      await window.page.getByText(/Trying again…/).waitFor();
      window.front.isDown = false;
      await window.page.getByText(/Trying again…/).waitFor({ state: 'detached', timeout: 6000 });
      await window.page.getByText('5.8M parameters').waitFor();
      const before = window.front.requests.length;
      await new Promise((done) => setTimeout(done, 2500));
      assert.equal(window.front.requests.length, before, 'nothing is asked for once all is known');
    },
  },
];
