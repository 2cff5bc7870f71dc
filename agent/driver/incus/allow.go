package incus

import (
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/job/confine"
)

// allowFlag is the agent's flag that also allows keys and devices that are not known to be
// harmless.
const allowFlag = "--incus-allow-privileged"

// defaultProfile is the profile that the daemon uses for an instance that names none.
const defaultProfile = "default"

// allowed returns an error if the task uses something that the operator does not allow:
// settings that may give access to the host, or profiles that are not for jobs. The error
// wraps driver.ErrNotAllowed and names the field and the agent's flag.
func (c settings) allowed(cfg Config) error {
	if cfg.AllowPrivileged {
		return nil
	}
	no := func(field, why string) error {
		return fmt.Errorf("%s: %w: %s", field, driver.ErrNotAllowed, why)
	}
	if field, why := confine.IncusPrivilege(c.kind, c.config, c.devices); why != "" {
		return no(field, fmt.Sprintf("%s (%s)", why, allowFlag))
	}
	for i, p := range c.profiles {
		if p != defaultProfile && !slices.Contains(cfg.Profiles, p) {
			return no(fmt.Sprintf("config.profiles[%d]", i), fmt.Sprintf("the profile %s is not one that jobs may have (--incus-profiles)", p))
		}
	}
	return nil
}
