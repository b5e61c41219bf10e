/** Components that are drawn again only if their properties change. */
import { Component, type ComponentChildren, type FunctionComponent } from 'preact';

/** `component`, drawn again only if `same` says that its properties differ. */
export function memo<P extends object>(
  component: (props: P) => ComponentChildren,
  same: (a: P, b: P) => boolean,
): FunctionComponent<P> {
  class Memo extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      return !same(this.props as P, next);
    }
    override render(): ComponentChildren {
      return component(this.props as P);
    }
  }
  return Memo as unknown as FunctionComponent<P>;
}
