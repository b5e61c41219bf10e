/** Settings of a conversation. An empty field is the server's choice, which it shows. */
import type { ComponentChildren, VNode } from 'preact';
import { useEffect } from 'preact/hooks';
import { extraOf, toolsOf } from '../chat/fields';
import { changeSettings, settings } from '../data/chats';
import { removeAll } from '../data/store';
import { prefer, preferences } from '../data/preferences';
import { explain, key, setKey } from '../server/http';
import { adapters, baseOf, connect, propsOf, refreshProps } from '../server/models';
import { Dialog } from './Dialog';
import { notify } from './notices';
import { dialog } from './panels';
import { ModelPicker } from './Header';
import { NumberInput } from './NumberInput';
import { Samplers } from './Samplers';

/** The panel. */
export function SettingsPanel(): VNode {
  const model = settings.value.model;
  useEffect(() => void refreshProps(model), [model]);
  const props = propsOf(model);
  const keep = (): void => {
    prefer({ settings: structuredClone(settings.value) });
    notify('New chats begin with these settings.');
  };
  return (
    <Dialog title="Settings" isDrawer onClose={() => (dialog.value = null)}>
      <form class="settings" onSubmit={(event) => event.preventDefault()}>
        <Section title="Answers">
          <div class="field">
            <span>Model</span>
            <ModelPicker />
          </div>
          <label class="field">
            <span>System prompt</span>
            <textarea
              rows={4}
              value={settings.value.system}
              placeholder={props?.chat_template.includes('system') === false ? 'This model’s template has none' : 'The template’s own'}
              onInput={(event) => changeSettings({ system: event.currentTarget.value })}
            />
          </label>
          <Adapters />
        </Section>
        <Samplers />
        <Section title="Reasoning and tools">
          <Thinking />
          <JsonField
            name="Tools, as a JSON list"
            text={settings.value.tools}
            read={toolsOf}
            hint={'[{"type": "function", "function": {"name": "…", "parameters": {…}}}]'}
            onText={(tools) => changeSettings({ tools })}
          />
          <JsonField
            name="Further fields of the request, as a JSON object"
            text={settings.value.extra}
            read={extraOf}
            hint={'{"stop": ["###"], "grammar": "…"}'}
            onText={(extra) => changeSettings({ extra })}
          />
        </Section>
        <Section title="This browser">
          <Theme />
          <Key />
          <div class="row">
            <button type="button" onClick={() => (dialog.value = 'help')}>
              Keyboard and about
            </button>
            <button type="button" onClick={keep}>
              Use these settings for new chats
            </button>
            <button
              type="button"
              onClick={() => changeSettings({ params: {}, system: '', thinking: undefined, effort: undefined, tools: undefined, extra: undefined, adapters: undefined })}
            >
              Use the server’s settings
            </button>
            <button type="button" class="danger" onClick={() => void forgetAll()}>
              Delete all conversations
            </button>
          </div>
        </Section>
        {props && (
          <p class="hint">
            {props.build_info} · fingerprint <code class="break">{props.system_fingerprint}</code>
          </p>
        )}
      </form>
    </Dialog>
  );
}

function Section({ title, children }: { title: string; children: ComponentChildren }): VNode {
  return (
    <fieldset>
      <legend>{title}</legend>
      {children}
    </fieldset>
  );
}

/** The scales of the adapters of the chosen model, in place of those that the server applies. */
function Adapters(): VNode | null {
  const base = baseOf(settings.value.model);
  const all = adapters.value.filter((adapter) => adapter.model === base);
  // An adapter that is chosen as the model is applied whole.
  if (all.length === 0 || (settings.value.model ?? base) !== base) return null;
  const scales = settings.value.adapters ?? {};
  const change = (name: string, scale: number | undefined): void => {
    const next = { ...scales };
    if (scale === undefined) delete next[name];
    else next[name] = scale;
    changeSettings({ adapters: Object.keys(next).length ? next : undefined });
  };
  return (
    <>
      {all.map((adapter) => (
        <label class="field" key={adapter.name}>
          <span>Scale of adapter {adapter.name}</span>
          <NumberInput
            step="any"
            value={scales[adapter.name]}
            placeholder={Object.keys(scales).length ? '0' : String(adapter.scale)}
            onNumber={(scale) => change(adapter.name, scale)}
          />
        </label>
      ))}
      <p class="hint">With a scale set here, adapters without one are off.</p>
    </>
  );
}

function Thinking(): VNode {
  const { thinking, effort } = settings.value;
  return (
    <>
      <label class="field">
        <span>Reasoning</span>
        <select
          aria-label="Reasoning"
          value={thinking === undefined ? '' : String(thinking)}
          onChange={(event) => {
            const chosen = event.currentTarget.value;
            changeSettings({ thinking: chosen === '' ? undefined : chosen === 'true' });
          }}
        >
          <option value="">Server’s default</option>
          <option value="true">On</option>
          <option value="false">Off</option>
        </select>
      </label>
      <label class="field">
        <span>Reasoning effort</span>
        <select aria-label="Reasoning effort" value={effort ?? ''} onChange={(event) => changeSettings({ effort: event.currentTarget.value || undefined })}>
          <option value="">Model’s default</option>
          <option value="low">Low</option>
          <option value="medium">Medium</option>
          <option value="high">High</option>
        </select>
      </label>
    </>
  );
}

interface JsonFieldProps {
  name: string;
  text: string | undefined;
  /** Throws if the text is not what it should be. */
  read: (text: string) => unknown;
  hint: string;
  onText: (text: string | undefined) => void;
}

function JsonField({ name, text = '', read, hint, onText }: JsonFieldProps): VNode {
  let problem = '';
  try {
    read(text);
  } catch (error) {
    problem = (error as Error).message;
  }
  return (
    <label class="field">
      <span>{name}</span>
      <textarea
        class="mono"
        aria-label={name}
        rows={3}
        spellcheck={false}
        value={text}
        aria-invalid={problem !== ''}
        placeholder={hint}
        onInput={(event) => onText(event.currentTarget.value || undefined)}
      />
      {problem && <small class="problem">{problem}</small>}
    </label>
  );
}

function Theme(): VNode {
  return (
    <label class="field">
      <span>Colours</span>
      <select
        aria-label="Colours"
        value={preferences.value.theme}
        onChange={(event) => prefer({ theme: event.currentTarget.value as 'system' | 'light' | 'dark' })}
      >
        <option value="system">Like the system</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}

function Key(): VNode {
  return (
    <label class="field">
      <span>Key of this server</span>
      <input
        type="password"
        autocomplete="off"
        value={key.value}
        placeholder="None"
        onChange={(event) => {
          setKey(event.currentTarget.value.trim());
          void connect(() => settings.value.model);
        }}
      />
    </label>
  );
}

async function forgetAll(): Promise<void> {
  if (!confirm('Delete all conversations in this browser? They cannot be brought back.')) return;
  try {
    await removeAll();
  } catch (error) {
    notify(`The conversations could not be deleted: ${explain(error)}`, 'error');
    return;
  }
  location.hash = '';
  location.reload();
}
