package driver

import "context"

// Unsupported implements Exec, Stats, Update and Signal for a Driver whose engine lacks them. Embed
// it in the type of that driver.
type Unsupported struct{}

// Exec returns ErrUnsupported: the engine cannot run further commands.
func (Unsupported) Exec(context.Context, ID, Exec) (ExitStatus, error) {
	return ExitStatus{}, ErrUnsupported
}

// Stats returns ErrUnsupported: the engine reports no statistics.
func (Unsupported) Stats(context.Context, ID) (Stats, error) { return Stats{}, ErrUnsupported }

// Update returns ErrUnsupported: the engine cannot change limits.
func (Unsupported) Update(context.Context, ID, Resources) error { return ErrUnsupported }

// Signal returns ErrUnsupported: the engine sends no signals.
func (Unsupported) Signal(context.Context, ID, int) error { return ErrUnsupported }
