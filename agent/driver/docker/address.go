package docker

import (
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// address of an engine, for its errors.
type address string

// wrap names the engine in an error. If this user may not use the socket, it adds the
// remedy.
func (a address) wrap(err error) error {
	if path, ok := strings.CutPrefix(string(a), "unix://"); ok && client.IsErrConnectionFailed(err) {
		if no := driver.Forbidden(path); no != nil {
			return fmt.Errorf("docker engine: %w: %w", no, err)
		}
	}
	return fmt.Errorf("docker engine at %s: %w", string(a), err)
}

// refused converts an engine's error into an error of Start: ErrInvalid if a retry
// is useless.
func (a address) refused(field string, err error) error {
	kind := driver.ErrStart
	if cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) {
		kind = driver.ErrInvalid
	}
	return fmt.Errorf("%w: %s: %w", kind, field, a.wrap(err))
}
