/** Keeps an error while something is drawn from stopping all of the page. */
import { Component, type ComponentChildren, type VNode } from 'preact';

interface BoundaryProps {
  /** What is drawn: once it is another, drawing is tried again. */
  of: unknown;
  /** What is shown in place of it. */
  text?: string;
  children: ComponentChildren;
}

/** Its children, or their plain text if they cannot be drawn. */
export class Boundary extends Component<BoundaryProps, { failed?: unknown }> {
  override componentDidCatch(error: unknown): void {
    console.warn('A part of the page could not be drawn:', error);
    this.setState({ failed: this.props.of });
  }

  override render({ of, text, children }: BoundaryProps): ComponentChildren {
    if (this.state.failed === undefined || this.state.failed !== of) return children;
    return text === undefined ? null : (<p class="typed">{text}</p> as VNode);
  }
}
