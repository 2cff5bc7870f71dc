//go:build integration

package incus

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
	"github.com/nusa-scheduler/nusa/agent/supervise"
)

var theDaemon *daemon // nil: not installed

func TestMain(m *testing.M) {
	code := 1
	var err error
	if incusd() != "" && os.Geteuid() == 0 {
		theDaemon, err = startDaemon()
	}
	if err == nil {
		code = m.Run()
	}
	if theDaemon != nil {
		if e := theDaemon.stop(); err == nil {
			err = e
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "incusd for the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// real returns the daemon, or skips.
func real(t *testing.T) *daemon {
	t.Helper()
	if theDaemon == nil {
		t.Skip("skipped: no incus (as root, with incusd and busybox-static installed)")
	}
	return theDaemon
}

// newReal returns a driver over the real daemon whose supervisor is the built
// binary.
func newReal(t *testing.T, dir string) *Driver {
	t.Helper()
	init, err := filepath.Abs("../../../bin/nusa")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Dir: dir, Address: real(t).socket(), Init: init})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if f := d.Fingerprint(t.Context()); !f.Healthy {
		t.Fatalf("not healthy: %s", f.Message)
	}
	return d
}

func shell(script string) map[string]any {
	return map[string]any{"image": "bb", "command": "sh", "args": []any{"-c", script}}
}

func TestContract(t *testing.T) {
	real(t)
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Subject{
		Driver:  newReal(t, dir),
		Reopen:  func(t *testing.T) driver.Driver { return newReal(t, dir) },
		Clock:   supervise.Boottime,
		Sleeper: map[string]any{"image": "bb", "command": "sleep", "args": []any{"3600"}},
		Exiter: func(code int, out, err string) map[string]any {
			return shell(fmt.Sprintf("printf %%s '%s'; printf %%s '%s' >&2; exit %d", out, err, code))
		},
		Invalid: map[string]any{"image": "bb", "command": "true", "no_such_field": true},
		Broken:  map[string]any{"image": "bb", "command": "/no/such/file"},
	})
}
