// Alternatives: edited messages, answers that are written again, and answers that go on.
import assert from 'node:assert/strict';
import { answering, words } from '../front.mjs';

const branches = (message) => message.getByRole('group', { name: /^Branch/ });

export default [
  {
    name: 'an edited question is answered on a branch of its own',
    options: { smoke: true },
    async run(window) {
      window.front.script = answering(words('First answer.'));
      await window.ask('First question');
      window.front.script = answering(words('Follow-up answer.'));
      await window.ask('Follow-up');
      const question = window.questions.first();
      await question.hover();
      await window.button('Edit', question).click();
      const editor = window.page.getByRole('textbox', { name: 'Edited message' });
      assert.equal(await editor.inputValue(), 'First question');
      await editor.fill('Second question');
      window.front.script = answering(words('Second answer.'));
      await window.button('Send', question).click();
      await window.page.getByText('Second answer.').waitFor();
      await window.written();
      assert.equal(await window.replies.count(), 1);
      assert.deepEqual(window.front.chats.at(-1).messages, [{ role: 'user', content: 'Second question' }]);
      assert.equal(await branches(window.questions.first()).getAttribute('aria-label'), 'Branch 2 of 2');
      await window.button('Previous branch').click();
      await window.page.getByText('Follow-up answer.').waitFor();
      assert.equal(await window.replies.count(), 2);
      await window.button('Next branch').click();
      await window.page.getByText('Second answer.').waitFor();
      // The branch that is shown stays after a reload.
      await window.page.reload();
      await window.page.getByText('Second answer.').waitFor();
      assert.equal(await window.replies.count(), 1);
    },
  },
  {
    name: 'editing can be given up',
    options: {},
    async run(window) {
      window.front.script = answering(words('Yes.'));
      await window.ask('Question');
      await window.questions.first().hover();
      await window.button('Edit', window.questions.first()).click();
      await window.page.getByRole('textbox', { name: 'Edited message' }).fill('Other');
      await window.page.keyboard.press('Escape');
      assert.equal(await window.questions.first().locator('.typed').textContent(), 'Question');
      assert.equal(window.front.chats.length, 1);
      assert.equal(await branches(window.page).count(), 0);
    },
  },
  {
    name: 'an answer can be edited, and the conversation goes on from it',
    options: {},
    async run(window) {
      window.front.script = answering(words('A wrong answer.'));
      await window.ask('Question');
      await window.button('Edit', window.last).click();
      await window.page.getByRole('textbox', { name: 'Edited message' }).fill('A better answer.');
      await window.button('Save', window.last).click();
      assert.equal(await window.text(), 'A better answer.');
      // It was typed, so there is no seed that would make it again.
      assert.equal(await window.last.locator('.stats').count(), 0);
      await window.ask('More');
      assert.equal(window.front.chats[1].messages[1].content, 'A better answer.');
      await window.button('Previous branch').click();
      assert.equal(await window.text(), 'A wrong answer.');
    },
  },
  {
    name: 'an answer is written again, with another seed',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 30 });
      await window.ask('Tell me a tale.');
      const first = await window.text();
      await window.button('Regenerate', window.last).click();
      await window.page.getByRole('group', { name: 'Branch 2 of 2' }).waitFor();
      await window.written();
      const [a, b] = window.front.chats;
      assert.notEqual(a.seed, b.seed);
      assert.deepEqual(a.messages, b.messages);
      assert.notEqual(await window.text(), first);
      await window.button('Previous branch').click();
      await window.page.getByRole('group', { name: 'Branch 1 of 2' }).waitFor();
      assert.equal(await window.text(), first);
    },
  },
  {
    name: 'an answer goes on where it ended',
    options: {},
    async run(window) {
      await window.set({ 'Maximum tokens': 20, Seed: 5 });
      await window.ask('Tell me a tale.');
      const short = await window.last.locator('.markdown').textContent();
      await window.button('Continue', window.last).click();
      await window.page.getByText('2 parts').waitFor();
      await window.written();
      const long = await window.last.locator('.markdown').textContent();
      assert.ok(long.length > short.length && long.startsWith(short.trim()), `${short}\n${long}`);
      const body = window.front.chats[1];
      assert.equal(body.continue_final_message, true);
      assert.equal(body.messages.at(-1).role, 'assistant');
      assert.ok(long.startsWith(body.messages.at(-1).content.trim()));
    },
  },
  {
    name: 'a message is deleted with what follows it',
    options: {},
    async run(window) {
      window.front.script = answering(words('One.'));
      await window.ask('First');
      await window.ask('Second');
      assert.equal(await window.replies.count(), 2);
      const second = window.questions.nth(1);
      await second.hover();
      await window.button('Delete this message and what follows it', second).click();
      await window.page.waitForFunction(() => document.querySelectorAll('article').length === 2);
      await window.page.reload();
      await window.replies.first().waitFor();
      assert.equal(await window.replies.count(), 1);
      // A question without an answer can be answered.
      await window.button('Delete this message and what follows it', window.last).click();
      await window.page.waitForFunction(() => document.querySelectorAll('article').length === 1);
      await window.questions.first().hover();
      await window.button('Answer this message').click();
      await window.replies.first().waitFor();
      await window.written();
      assert.equal(await window.text(), 'One.');
    },
  },
  {
    name: 'an edited answer keeps its calls, and one that was stopped in its reasoning goes on',
    options: {},
    async run(window) {
      const call = { index: 0, id: 'a', type: 'function', function: { name: 'look', arguments: '{"at":1}' } };
      window.front.script = answering([{ content: 'I look.' }, { tool_calls: [call] }], { finish: 'tool_calls' });
      await window.ask('Look.');
      await window.button('Edit', window.last).click();
      await window.page.getByRole('textbox', { name: 'Edited message' }).fill('Let me look.');
      await window.button('Save', window.last).click();
      await window.last.getByLabel('Result of look').fill('a cat');
      window.front.script = answering(words('Hm, a cat', 'reasoning_content'), { finish: 'length' });
      await window.button('Send the result', window.last).click();
      await window.last.getByText('Reasoning').waitFor();
      await window.written();
      const { messages } = window.front.chats[1];
      assert.equal(messages[1].content, 'Let me look.');
      assert.equal(messages[1].tool_calls[0].function.name, 'look');
      window.front.script = answering([...words(' or a dog.', 'reasoning_content'), ...words('A cat.')]);
      await window.button('Continue', window.last).click();
      await window.page.getByText('A cat.', { exact: true }).waitFor();
      const body = window.front.chats[2];
      assert.equal(body.continue_final_message, true);
      assert.deepEqual(body.messages.at(-1), { role: 'assistant', content: '', reasoning_content: 'Hm, a cat' });
      assert.equal(await window.last.locator('details.reasoning .markdown').textContent(), 'Hm, a cat or a dog.');
    },
  },
];
