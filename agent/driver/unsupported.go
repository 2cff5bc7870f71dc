package driver

import "context"

// Unsupported implements the methods of a Driver whose engine has no exec, no
// statistics and no live limits. Embed it.
type Unsupported struct{}

// Exec returns ErrUnsupported: the engine cannot run further commands.
func (Unsupported) Exec(context.Context, ID, Exec) (ExitStatus, error) {
	return ExitStatus{}, ErrUnsupported
}

// Stats returns ErrUnsupported: the engine reports no statistics.
func (Unsupported) Stats(context.Context, ID) (Stats, error) { return Stats{}, ErrUnsupported }

// Update returns ErrUnsupported: the engine cannot change limits.
func (Unsupported) Update(context.Context, ID, Resources) error { return ErrUnsupported }
