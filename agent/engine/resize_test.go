package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// usingDriver reports how much memory a run uses, and counts the changes of limits.
type usingDriver struct {
	driver.Driver
	used    int64
	err     error
	updates int
}

func (d *usingDriver) Stats(context.Context, driver.ID) (driver.Stats, error) {
	return driver.Stats{MemoryBytes: d.used}, d.err
}

func (d *usingDriver) Update(context.Context, driver.ID, driver.Resources) error {
	d.updates++
	return nil
}

// TestLimitBelowTheUseIsRefused: the kernel would kill a run that uses more memory than its new limit.
func TestLimitBelowTheUseIsRefused(t *testing.T) {
	r := &runner{ctx: t.Context(), log: slog.New(slog.DiscardHandler)}
	for name, c := range map[string]struct {
		used, limit int64
		err         error
		refused     bool
	}{
		"less":     {used: 90 << 20, limit: 100 << 20},
		"more":     {used: 200 << 20, limit: 100 << 20, refused: true},
		"no limit": {used: 200 << 20},
		"unknown":  {used: -1, limit: 100 << 20},
		"no stats": {used: 200 << 20, limit: 100 << 20, err: errors.New("no")},
	} {
		d := &usingDriver{used: c.used, err: c.err}
		err := r.resize(d, driver.ID{}, reconcile.Limits{MemoryBytes: c.limit})
		if (err != nil) != c.refused || (d.updates == 0) != c.refused {
			t.Errorf("%s: %v, %d changes", name, err, d.updates)
		}
		if c.refused && !strings.Contains(err.Error(), "uses 200 MiB of memory, more than the new limit of 100 MiB") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
