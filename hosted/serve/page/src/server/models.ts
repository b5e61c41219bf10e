/** What the server has: models, adapters, and its defaults. */
import { computed, signal } from '@preact/signals';
import type { Adapter, Model, Props } from '../types';
import { explain, getJson, ServerError } from './http';

/** Models and adapters that requests can name. */
export const models = signal<Model[]>([]);
/** Adapters, with the scales that the server applies by itself. */
export const adapters = signal<Adapter[]>([]);
/** Why the server's state is not known. */
export const trouble = signal<string | null>(null);
/** Whether models are still loading. */
export const isLoading = signal(false);

const props = signal<Record<string, Props>>({});

/** The first model, which answers requests that name none. */
export const firstModel = computed(() => models.value.find((model) => !model.parent)?.id);

/** The model under a name: of an adapter, its base. */
export function baseOf(name: string | undefined): string | undefined {
  const model = models.value.find((model) => model.id === name);
  return model ? (model.parent ?? model.id) : firstModel.value;
}

/** What `/props` says about a model, if it is in memory or asleep. */
export function propsOf(name: string | undefined): Props | undefined {
  return props.value[baseOf(name) ?? ''];
}

/** The server's default for a sampling parameter. */
export function defaultOf(parameter: string, name: string | undefined): unknown {
  return propsOf(name)?.default_generation_settings.params[parameter];
}

/** Whether a model or adapter can answer at once. */
export function isReady(name: string | undefined): boolean {
  const model = models.value.find((model) => model.id === name);
  return model === undefined || ['loaded', 'sleeping'].includes(model.status.value);
}

/** Reads the lists of models and adapters, and again while models load or the server is away. */
export async function refreshModels(): Promise<void> {
  try {
    const [list, loras] = await Promise.all([
      getJson<{ data: Model[] }>('v1/models'),
      getJson<Adapter[]>('lora-adapters').catch(() => [] as Adapter[]),
    ]);
    models.value = list.data;
    adapters.value = loras;
    trouble.value = null;
    isLoading.value = list.data.some((model) => model.status.value === 'loading');
    await refreshProps(chosen());
  } catch (error) {
    // The key is asked for, and connects again.
    if (error instanceof ServerError && error.status === 401) return;
    trouble.value = explain(error);
  }
  clearTimeout(timer);
  if (isLoading.value || trouble.value !== null) timer = setTimeout(() => void refreshModels(), RETRY_MS);
}

let timer: ReturnType<typeof setTimeout> | undefined;
let chosen: () => string | undefined = () => undefined;

/** Reads the defaults that apply to a model, if they are not known. */
export async function refreshProps(name: string | undefined): Promise<void> {
  const of = baseOf(name);
  if (of === undefined || props.value[of]) return;
  try {
    const found = await getJson<Props>(`props?model=${encodeURIComponent(of)}`);
    props.value = { ...props.value, [of]: found };
  } catch {
    // The model is not in memory yet; the defaults are shown after its first answer.
  }
}

/** Reads everything; `name` is the model whose defaults are shown. */
export async function connect(name: () => string | undefined): Promise<void> {
  chosen = name;
  await refreshModels();
}

/** A count in words: 134515008 is "135M". */
export function shortCount(n: number): string {
  const units: [number, string][] = [[1e12, 'T'], [1e9, 'B'], [1e6, 'M'], [1e3, 'k']];
  for (const [unit, name] of units) {
    if (n >= unit) return `${Number((n / unit).toPrecision(n / unit < 100 ? 2 : 3))}${name}`;
  }
  return String(n);
}

const RETRY_MS = 2000;
