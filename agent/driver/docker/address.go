package docker

import (
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// address is the address of an engine. Its methods name the engine in errors.
type address string

// wrap adds the address of the engine to an error. If this user may not use the engine's
// socket, the error also names the remedy.
func (a address) wrap(err error) error {
	if path, ok := strings.CutPrefix(string(a), "unix://"); ok && client.IsErrConnectionFailed(err) {
		if no := driver.Forbidden(path); no != nil {
			return fmt.Errorf("docker engine: %w: %w", no, err)
		}
	}
	return fmt.Errorf("docker engine at %s: %w", string(a), err)
}

// refused converts an engine's error into an error of Start. The result is an ErrInvalid if
// a retry is useless.
func (a address) refused(field string, err error) error {
	kind := driver.ErrStart
	if cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) {
		kind = driver.ErrInvalid
	}
	return fmt.Errorf("%w: %s: %w", kind, field, a.wrap(err))
}
