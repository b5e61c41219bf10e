/** A field for a number that may be empty. */
import type { VNode } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';

interface NumberInputProps {
  value: number | undefined;
  /** Called with the number at each change; without one if the field is empty or has none. */
  onNumber: (value: number | undefined) => void;
  placeholder: string;
  name?: string;
  min?: number;
  max?: number;
  step?: number | 'any';
}

/** The field. What is typed stays as it is typed: a number on its way, such as `0.`, is not written back. */
export function NumberInput({ value, onNumber, ...rest }: NumberInputProps): VNode {
  const field = useRef<HTMLInputElement>(null);
  const write = (): void => {
    if (field.current) field.current.value = value === undefined ? '' : String(value);
  };
  useLayoutEffect(() => {
    if (document.activeElement !== field.current) write();
  }, [value]);
  return (
    <input
      {...rest}
      ref={field}
      type="number"
      inputMode="decimal"
      onInput={(event) => {
        const { valueAsNumber } = event.currentTarget;
        onNumber(Number.isNaN(valueAsNumber) ? undefined : valueAsNumber);
      }}
      onBlur={write}
    />
  );
}
