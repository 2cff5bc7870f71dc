package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
)

// able is a driver that could show secrets to its tasks.
type able struct{ *mock.Driver }

func (a able) Fingerprint(ctx context.Context) driver.Fingerprint {
	f := a.Driver.Fingerprint(ctx)
	f.Capabilities = slices.Sorted(slices.Values(append(f.Capabilities, driver.CapSecrets)))
	return f
}

// TestNoSecretsNoCapability: whatever its drivers can do, an agent without
// secrets offers none, so that nothing that needs one is placed there, and says
// which setting is missing; what else they can do stays.
func TestNoSecretsNoCapability(t *testing.T) {
	for name, with := range map[string]bool{"without --secrets-dir": false, "with it": true} {
		c := testConfig(t, t.TempDir(), able{mock.New(mock.Config{})}, "127.0.0.1:1")
		if with {
			c.SecretsDir = filepath.Join(t.TempDir(), "secrets")
			if err := os.Mkdir(c.SecretsDir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		c, err := c.withParts()
		if err != nil {
			t.Fatal(err)
		}
		inv, err := newInventory(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.setup.CanSecrets(); with && err != nil {
			t.Log("skipped: no memory for secrets on this host: ", err)
			continue
		}
		d := inv.Get().GetDrivers()[0]
		if can := slices.Contains(d.GetCapabilities(), driver.CapSecrets); can != with || !slices.Contains(d.GetCapabilities(), driver.CapRecover) {
			t.Errorf("%s: it can %v", name, d.GetCapabilities())
		}
		if says := strings.Contains(d.GetMessage(), "no secrets: its agent has none (--secrets-dir)"); says == with {
			t.Errorf("%s: %q", name, d.GetMessage())
		}
	}
}
