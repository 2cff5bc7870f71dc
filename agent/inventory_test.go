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

// able is a driver with the capability to show secrets to its tasks.
type able struct{ *mock.Driver }

func (a able) Fingerprint(ctx context.Context) driver.Fingerprint {
	f := a.Driver.Fingerprint(ctx)
	f.Capabilities = slices.Sorted(slices.Values(append(f.Capabilities, driver.CapSecrets)))
	return f
}

// TestAgentWithoutSecretsOffersNone: an agent without secrets does not report the
// capability, and names the missing setting. Then no task that needs a secret is placed
// there. The drivers keep their other capabilities.
func TestAgentWithoutSecretsOffersNone(t *testing.T) {
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
		if says := strings.Contains(d.GetMessage(), "no secrets: this node has none: set --secrets-dir of its agent"); says == with {
			t.Errorf("%s: %q", name, d.GetMessage())
		}
	}
}

// TestServiceAddress: the configured address has priority over those of the machine, and must be one that another
// machine can dial.
func TestServiceAddress(t *testing.T) {
	c := testConfig(t, t.TempDir(), mock.New(mock.Config{}), "127.0.0.1:1")
	c.Address = "192.0.2.7"
	set, err := c.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	set, err = set.withParts()
	if err != nil {
		t.Fatal(err)
	}
	inv, err := newInventory(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	if got := inv.Address(); got != "192.0.2.7" {
		t.Errorf("the address is %q", got)
	}
	for _, wrong := range []string{"host", "192.0.2.7:80", "0.0.0.0", "::", "224.0.0.1", "fe80::1%eth0"} {
		c.Address = wrong
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), "--service-address") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
