/** The bar above a conversation: its model, and the way to everything else. */
import type { VNode } from 'preact';
import { changeSettings, settings } from '../data/chats';
import { prefer, preferences } from '../data/preferences';
import { firstModel, models, refreshProps, shortCount } from '../server/models';
import type { Model } from '../types';
import { IconButton } from './icons';
import { dialog, isListOpen, narrow } from './panels';
import { go } from './Sidebar';

/** The bar. */
export function Header(): VNode {
  const { theme, sidebar } = preferences.value;
  const isDark = theme === 'dark' || (theme === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  const toggleList = (): void => {
    if (narrow.matches) isListOpen.value = !isListOpen.value;
    else prefer({ sidebar: !sidebar });
  };
  return (
    <header class="bar">
      <IconButton icon="list" label="Conversations" onClick={toggleList} />
      <h1 class="offscreen">Sluice</h1>
      <ModelPicker />
      <span class="space" />
      <IconButton icon="add" label="New chat" onClick={() => go(null)} />
      <IconButton
        icon={isDark ? 'sun' : 'moon'}
        label={isDark ? 'Light colours' : 'Dark colours'}
        onClick={() => prefer({ theme: isDark ? 'light' : 'dark' })}
      />
      <IconButton icon="settings" label="Settings" onClick={() => (dialog.value = 'settings')} />
      <IconButton icon="help" label="Keyboard and about" class="help" onClick={() => (dialog.value = 'help')} />
    </header>
  );
}

/** The models and adapters that can answer. */
export function ModelPicker(): VNode {
  const all = models.value;
  const chosen = settings.value.model;
  const isGone = chosen !== undefined && all.length > 0 && !all.some((model) => model.id === chosen);
  const bases = all.filter((model) => !model.parent);
  const adapted = all.filter((model) => model.parent);
  return (
    <select
      class="models"
      aria-label="Model"
      value={chosen ?? firstModel.value ?? ''}
      onChange={(event) => {
        const model = event.currentTarget.value;
        changeSettings({ model });
        void refreshProps(model);
      }}
    >
      {all.length === 0 && <option value="">No model</option>}
      {isGone && <option value={chosen}>{chosen} (not on this server)</option>}
      {adapted.length === 0 ? (
        bases.map(option)
      ) : (
        <>
          <optgroup label="Models">{bases.map(option)}</optgroup>
          <optgroup label="Adapters">{adapted.map(option)}</optgroup>
        </>
      )}
    </select>
  );
}

function option(model: Model): VNode {
  const { value, failed } = model.status;
  const facts = [];
  if (model.parent) facts.push(`on ${model.parent}`);
  if (model.meta?.n_params) facts.push(shortCount(model.meta.n_params));
  if (failed) facts.push('failed');
  else if (value !== 'loaded') facts.push(value === 'unloaded' ? 'loads when asked' : value);
  return (
    <option key={model.id} value={model.id}>
      {[model.id, ...facts].join(' · ')}
    </option>
  );
}
