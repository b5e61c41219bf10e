// Models, adapters, samplers and the system prompt.
import assert from 'node:assert/strict';
import { answering, words } from '../front.mjs';

export default [
  {
    name: "samplers show the server's defaults, and only what is set is sent",
    options: { smoke: true },
    async run(window) {
      const props = await (await fetch(`${window.front.url}props`)).json();
      const { params } = props.default_generation_settings;
      const panel = await window.settings();
      for (const [label, name] of [['Temperature', 'temperature'], ['Top p', 'top_p'], ['Top k', 'top_k'], ['Min p', 'min_p']]) {
        const shown = Number(await panel.getByLabel(label, { exact: true }).getAttribute('placeholder'));
        assert.ok(Math.abs(shown - params[name]) < 1e-6, `${name}: ${shown}`);
      }
      await panel.getByText('More samplers').click();
      for (const name of ['xtc_probability', 'mirostat', 'dry_base', 'ignore_eos', 'min_keep']) {
        await panel.getByLabel(name, { exact: true }).waitFor();
      }
      const order = await panel.getByLabel(/^samplers, in order/).getAttribute('placeholder');
      assert.equal(order, params.samplers.join(';'));
      await panel.getByLabel('Temperature', { exact: true }).fill('0.3');
      await panel.getByLabel('xtc_probability', { exact: true }).fill('0.25');
      await panel.getByLabel('ignore_eos', { exact: true }).selectOption('true');
      await window.isAccessible();
      await window.close();
      await window.set({ 'Maximum tokens': 4 });
      await window.ask('Hello');
      const [body] = window.front.chats;
      const sent = ['temperature', 'xtc_probability', 'ignore_eos', 'n_predict'];
      assert.deepEqual(sent.map((name) => body[name]), [0.3, 0.25, true, 4]);
      assert.deepEqual(['top_p', 'top_k', 'min_p', 'lora', 'tools'].filter((name) => name in body), []);
      const again = await window.settings();
      await window.button('Use the server’s settings', again).click();
      assert.equal(await again.getByLabel('Temperature', { exact: true }).inputValue(), '');
      await window.close();
      window.front.script = answering(words('Hi.'));
      await window.ask('Hello');
      assert.deepEqual(sent.filter((name) => name in window.front.chats[1]), []);
    },
  },
  {
    name: 'a value that the server refuses is named',
    options: {},
    async run(window) {
      await window.set({ 'Top p': 7 });
      await window.ask('Hello');
      await window.last.getByRole('alert').getByText(/top_p/).waitFor();
      await window.set({ 'Top p': '', 'Maximum tokens': 3 });
      await window.button('Try again', window.last).click();
      await window.page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      assert.ok((await window.text()).length > 0);
    },
  },
  {
    name: 'the model is chosen per conversation',
    options: {},
    async run(window) {
      const picker = window.page.getByRole('combobox', { name: 'Model' });
      assert.match(await picker.locator('option').first().textContent(), /^tale · 5\.8M/);
      await picker.selectOption('other');
      await window.set({ 'Maximum tokens': 4 });
      await window.ask('Hello');
      assert.equal(window.front.chats[0].model, 'other');
      await window.button('New chat', window.page.getByRole('banner')).click();
      await window.page.getByRole('heading', { name: 'tale' }).waitFor();
      assert.equal(await picker.inputValue(), 'tale');
      await window.page.goBack().catch(() => {});
      const nav = await window.list();
      await nav.getByRole('link', { name: 'Hello' }).click();
      await window.last.waitFor();
      assert.equal(await picker.inputValue(), 'other');
    },
  },
  {
    name: 'an adapter is chosen as a model, or set by its scale',
    options: {},
    async run(window) {
      const picker = window.page.getByRole('combobox', { name: 'Model' });
      assert.match(await picker.locator('optgroup[label=Adapters] option').textContent(), /^style · on tale/);
      await window.set({ 'Maximum tokens': 12, Seed: 4 });
      await window.ask('Tell me a tale.');
      const plain = await window.text();
      await picker.selectOption('style');
      await window.button('Regenerate', window.last).click();
      await window.page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      assert.equal(window.front.chats[1].model, 'style');
      const prints = await window.page.getByRole('button', { name: /^fingerprint/ }).textContent();
      await window.button('Previous branch').click();
      assert.notEqual(await window.page.getByRole('button', { name: /^fingerprint/ }).textContent(), prints);
      assert.equal(await window.text(), plain);
      await picker.selectOption('tale');
      const panel = await window.settings();
      const scale = panel.getByLabel('Scale of adapter style');
      assert.equal(await scale.getAttribute('placeholder'), '0');
      await scale.fill('0.5');
      await window.close();
      await window.button('Regenerate', window.last).click();
      await window.page.getByRole('group', { name: 'Branch 3 of 3' }).waitFor();
      await window.written();
      assert.deepEqual(window.front.chats[2].lora, [{ name: 'style', scale: 0.5 }]);
      assert.equal(await window.page.locator('.failure').count(), 0);
    },
  },
  {
    name: 'the system prompt is sent, and settings can be kept for new chats',
    options: {},
    async run(window) {
      await window.set({ 'System prompt': 'Answer in rhyme.', Temperature: 0.2 });
      const panel = await window.settings();
      await window.button('Use these settings for new chats', panel).click();
      await window.close();
      window.front.script = answering(words('Fine.'));
      await window.ask('Hello');
      assert.deepEqual(window.front.chats[0].messages[0], { role: 'system', content: 'Answer in rhyme.' });
      await window.page.reload();
      await window.button('New chat', window.page.getByRole('banner')).click();
      window.front.script = answering(words('Fine.'));
      await window.ask('Hello again');
      assert.equal(window.front.chats.at(-1).messages[0].content, 'Answer in rhyme.');
      assert.equal(window.front.chats.at(-1).temperature, 0.2);
    },
  },
  {
    name: 'reasoning is turned on and off, and further fields are sent',
    options: {},
    async run(window) {
      const panel = await window.settings();
      await panel.getByLabel('Reasoning', { exact: true }).selectOption('false');
      await panel.getByLabel('Reasoning effort').selectOption('low');
      await window.close();
      window.front.script = answering(words('Fine.'));
      await window.ask('Hello');
      await window.set({ 'Further fields of the request, as a JSON object': '{"stop": ["###"]}' });
      await window.ask('Hello again');
      assert.deepEqual(window.front.chats[1].stop, ['###']);
      assert.equal(window.front.chats[0].enable_thinking, false);
      assert.equal(window.front.chats[0].reasoning_effort, 'low');
    },
  },
  {
    name: 'a number stays as it is typed',
    options: {},
    async run(window) {
      let panel = await window.settings();
      const { keyboard } = window.page;
      const type = async (label, text) => {
        const field = panel.getByLabel(label, { exact: true });
        await field.click();
        await keyboard.type(text);
        assert.equal(await field.inputValue(), text);
      };
      await type('Temperature', '0.7');
      await type('Top p', '0.05');
      await type('Maximum tokens', '-1');
      await type('Scale of adapter style', '0.25');
      await window.close();
      panel = await window.settings();
      assert.equal(await panel.getByLabel('Temperature', { exact: true }).inputValue(), '0.7');
      await panel.getByLabel('Top p', { exact: true }).fill('');
      // What the button sets is shown at once, also where the focus was.
      await window.button('Use the server’s settings', panel).click();
      assert.equal(await panel.getByLabel('Temperature', { exact: true }).inputValue(), '');
      await type('Temperature', '1.5');
      await window.close();
      window.front.script = answering(words('Fine.'));
      await window.ask('Hello');
      assert.equal(window.front.chats[0].temperature, 1.5);
    },
  },
  {
    name: 'further fields of a wrong kind, or that the page sets itself, are refused by name',
    options: {},
    async run(window) {
      const wrong = [
        ['[1]', /have to be a JSON object/],
        ['7', /have to be a JSON object/],
        ['{"messages": []}', /cannot have "messages"/],
        ['{"n": 2}', /cannot have "n"/],
        ['{"stream": false}', /cannot have "stream"/],
        ['{"seed": "x"}', /"seed" has to be a whole number/],
      ];
      const label = 'Further fields of the request, as a JSON object';
      window.front.script = answering(words('Fine.'));
      for (const [text, why] of wrong) {
        const panel = await window.settings();
        await panel.getByLabel(label).fill(text);
        await panel.locator('.problem').getByText(why).waitFor();
        await window.close();
        await window.field.fill('Hello');
        await window.button('Send').click();
        const notice = window.page.getByRole('log').locator('.notice').filter({ hasText: why }).last();
        await window.button('Close', notice).click();
      }
      await window.set({ [label]: '', 'Tools, as a JSON list': '[3]' });
      await window.button('Send').click();
      await window.page.getByRole('log').getByText(/tools have to be a JSON list of objects/).waitFor();
      assert.equal(window.front.chats.length, 0);
      assert.equal(await window.field.inputValue(), 'Hello');
      // A seed among them is the answer's; without one, one is drawn.
      await window.set({ [label]: '{"seed": 77}', 'Tools, as a JSON list': '' });
      await window.ask('Hello');
      await window.set({ [label]: '{"seed": -1}' });
      await window.ask('Hello');
      assert.equal(window.front.chats[0].seed, 77);
      assert.ok(window.front.chats[1].seed >= 0);
      assert.match(await window.last.locator('.stats').textContent(), /seed \d+/);
    },
  },
  {
    name: 'lists of texts are sent as lists',
    options: {},
    async run(window) {
      const panel = await window.settings();
      await panel.getByText('More samplers').click();
      const breakers = panel.getByLabel(/^dry_sequence_breakers/);
      assert.equal(await breakers.getAttribute('placeholder'), '["\\n",":","\\"","*"]');
      await breakers.fill('\\n;x');
      await panel.getByText(/has to be a JSON list of texts/).waitFor();
      await breakers.fill('["\\n", ";"]');
      await panel.getByLabel(/^samplers, in order/).fill('top_k;temperature');
      await window.close();
      await window.set({ 'Maximum tokens': 3 });
      await window.ask('Hello');
      assert.deepEqual(window.front.chats[0].dry_sequence_breakers, ['\n', ';']);
      assert.deepEqual(window.front.chats[0].samplers, ['top_k', 'temperature']);
      assert.equal(await window.page.locator('.failure').count(), 0);
    },
  },
  {
    name: 'where the browser lets the page keep nothing, it works for the window',
    options: {},
    async run(window) {
      await window.context.addInitScript(() => {
        Object.defineProperty(globalThis, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } });
      });
      await window.page.reload();
      await window.button('Dark colours').click();
      await window.button('Light colours').click();
      window.front.script = answering(words('Fine.'));
      await window.ask('Hello');
      assert.equal(await window.text(), 'Fine.');
    },
  },
];
