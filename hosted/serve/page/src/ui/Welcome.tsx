/** What an empty conversation shows. */
import type { VNode } from 'preact';
import { settings } from '../data/chats';
import { defaultOf, firstModel, isLoading, models, propsOf, shortCount, trouble } from '../server/models';

/** The model that will answer, and where it is. */
export function Welcome(): VNode {
  const name = settings.value.model ?? firstModel.value;
  const model = models.value.find((model) => model.id === name);
  const facts = [];
  if (model?.meta?.n_params) facts.push(`${shortCount(model.meta.n_params)} parameters`);
  const context = propsOf(name)?.default_generation_settings.n_ctx;
  if (context) facts.push(`context of ${context.toLocaleString('en')} tokens`);
  const temperature = defaultOf('temperature', name);
  if (typeof temperature === 'number') facts.push(`temperature ${Number(temperature.toPrecision(3))}`);
  return (
    <div class="welcome">
      <h2>{name ?? 'Sluice'}</h2>
      {trouble.value ? (
        <p role="status">{trouble.value} Trying again…</p>
      ) : isLoading.value ? (
        <p role="status">Models are loading…</p>
      ) : (
        <p>{facts.join(' · ')}</p>
      )}
      <p class="hint">Runs on the machine that serves this page. Conversations stay in this browser.</p>
    </div>
  );
}
