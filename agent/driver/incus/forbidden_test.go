package incus

import (
	"errors"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
)

// TestForbidden: if this user may not use the socket, the error says what to do.
func TestForbidden(t *testing.T) {
	drivertest.Unprivileged(t, func(t *testing.T) {
		d, err := New(Config{Dir: t.TempDir(), Address: drivertest.ForbiddenSocket(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		_, err = d.engine.instance(t.Context(), "x")
		if !errors.Is(err, driver.ErrForbidden) || !strings.Contains(err.Error(), "run the agent as root, or add its user to the group") {
			t.Error(err)
		}
		task := driver.Task{ID: driver.ID{Alloc: "a", Task: "t", Run: 1}, Config: map[string]any{"image": "x", "command": "y"}, Dir: t.TempDir(), AllocDir: t.TempDir()}
		if err := d.Start(t.Context(), task); !errors.Is(err, driver.ErrStart) || !errors.Is(err, driver.ErrForbidden) {
			t.Error(err)
		}
	})
}
