// Package global is the federation's tier: it keeps jobs, slots and regions
// in etcd, decides which regions run a job (package place), and ends the
// streams that the regions' masters dial to it. One server is active; the
// others forward to it.
package global

import (
	"context"
	"errors"
)

// Run serves until ctx ends or the first fatal error. Everything that it
// started has ended when it returns. A nil error means that ctx ended.
func Run(ctx context.Context, cfg Config) error {
	return errors.New("global: not built yet")
}
