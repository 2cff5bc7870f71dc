//go:build integration

package docker

import (
	"errors"
	"testing"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest/engines"
)

// engine is a Docker engine of one test.
type engine struct{ *engines.Docker }

// newEngine starts an engine with an image "box:1" of busybox. It skips the test if
// no engine is installed.
func newEngine(t *testing.T, flags ...string) *engine {
	t.Helper()
	network, err := engines.NewNetwork()
	if err != nil {
		t.Skip("skipped: no docker: ", err)
	}
	t.Cleanup(func() { network.Close() })
	d, err := engines.NewDocker(network, flags...)
	if errors.Is(err, engines.ErrMissing) {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := d.Destroy(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	return &engine{d}
}

// signal sends a signal to the engine.
func (e *engine) signal(t *testing.T, sig unix.Signal) {
	t.Helper()
	must(t, e.Process.Signal(sig))
}

func (e *engine) client(t *testing.T) *client.Client {
	t.Helper()
	cli, err := client.New(client.WithHost(e.Host()))
	must(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}
