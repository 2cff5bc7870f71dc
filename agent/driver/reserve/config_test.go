package reserve

import (
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
)

// TestConfigAsSubmitted: the driver refuses the form of a config if and only if a server does.
func TestConfigAsSubmitted(t *testing.T) {
	drivertest.Configs(t, "reserve", func(c map[string]any) error {
		_, err := ttl(c)
		return err
	})
}
