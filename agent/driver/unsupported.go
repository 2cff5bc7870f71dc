package driver

import "context"

// Unsupported is the part of a Driver that an engine without exec, statistics
// and live limits has: embed it.
type Unsupported struct{}

// Exec is ErrUnsupported.
func (Unsupported) Exec(context.Context, ID, Exec) (ExitStatus, error) {
	return ExitStatus{}, ErrUnsupported
}

// Stats is ErrUnsupported.
func (Unsupported) Stats(context.Context, ID) (Stats, error) { return Stats{}, ErrUnsupported }

// Update is ErrUnsupported.
func (Unsupported) Update(context.Context, ID, Resources) error { return ErrUnsupported }
