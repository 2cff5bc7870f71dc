package agent

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/nusa-scheduler/nusa/agent/driver/plugin"
	"github.com/nusa-scheduler/nusa/job"
)

// maxPlugins bounds the plugins of an agent.
const maxPlugins = 16

// checkPlugins refuses plugins whose names are not valid. A missing executable does not
// prevent the start of the agent: the driver is then unhealthy.
func checkPlugins(plugins map[string]string) error {
	if len(plugins) > maxPlugins {
		return fmt.Errorf("%w: --plugin: %d of them, at most %d", errConfig, len(plugins), maxPlugins)
	}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		if err := job.CheckPluginName(name); err != nil {
			return fmt.Errorf("%w: --plugin: %w", errConfig, err)
		}
		if plugins[name] == "" {
			return fmt.Errorf("%w: --plugin: %s= names no executable", errConfig, name)
		}
	}
	return nil
}

// withPlugins starts the plugins and adds them to the drivers.
func (c Config) withPlugins() (Config, error) {
	changed := make(chan struct{}, 1)
	c.driversChanged = changed
	var started []*plugin.Driver
	closeOthers := c.closeDrivers
	c.closeDrivers = func() {
		var ends sync.WaitGroup
		for _, p := range started {
			ends.Go(p.Close)
		}
		ends.Wait()
		closeOthers()
	}
	for _, name := range slices.Sorted(maps.Keys(c.Plugins)) {
		path, err := filepath.Abs(c.Plugins[name])
		if err != nil {
			return c, fmt.Errorf("%w: --plugin %s: %w", errConfig, name, err)
		}
		p, err := plugin.New(plugin.Config{
			Name: name, Path: path, Dir: filepath.Join(c.DataDir, "plugins", name), AgentVersion: c.Version, Logger: c.Logger,
			Changed: func() {
				select {
				case changed <- struct{}{}:
				default: // an inspection is pending already
				}
			},
		})
		if err != nil {
			c.closeDrivers()
			return c, fmt.Errorf("--plugin %s: %w", name, err)
		}
		started = append(started, p)
		c.Drivers[name] = p
	}
	return c, nil
}
