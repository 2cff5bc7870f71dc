package process

import (
	"testing"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/drivertest"
)

// TestConfigAsSubmitted: the driver refuses the form of a config if and only if a server does.
func TestConfigAsSubmitted(t *testing.T) {
	drivertest.Configs(t, "process", func(c map[string]any) error {
		_, err := parse(driver.Task{Dir: "/task", Config: c})
		return err
	})
}
