package main

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/internal/config"
	"github.com/nusa-scheduler/nusa/job"
)

// noArguments refuses positional arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q: this command takes no arguments; see %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

// trimList removes the blank items of a list flag, as in "a,,b" and "a,b,". It refuses a
// flag that is set but has no item, because the user probably passed an empty variable.
func trimList(flags *pflag.FlagSet, flag string, values []string) ([]string, error) {
	var out []string
	for _, v := range values {
		v = strings.TrimSpace(v)
		if v != "" {
			out = append(out, v)
		}
	}
	if len(out) == 0 && flags.Changed(flag) {
		return nil, fmt.Errorf("--%s: it names nothing (an empty variable?)", flag)
	}
	return out, nil
}

// checkFlags refuses bad values before the role starts: missing required flags, names,
// addresses, empty lists and negative numbers. A role would refuse some of them only later,
// or without the name of the flag.
func checkFlags(flags *pflag.FlagSet, required ...string) error {
	for _, name := range required {
		if flags.Lookup(name).Value.String() == "" || flags.Lookup(name).Value.String() == "[]" {
			return fmt.Errorf("--%s is required (or %s, or %s in the --config file)", name, config.EnvName(name), name)
		}
	}
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if err := checkFlag(flags, f); first == nil {
			first = err
		}
	})
	return first
}

// minNodeLease is the shortest lease of nodes that a flag may set. An agent renews the
// lease when a third of it has passed, and a renewal may take a second.
const minNodeLease = 3 * time.Second

// leaseLength refuses a lease that is too short for three renewals.
func leaseLength(flag, value string, least time.Duration) error {
	length, err := time.ParseDuration(value)
	if err != nil || length < least {
		return fmt.Errorf("--%s: %s is shorter than three renewals of a second each: give at least %s", flag, value, least)
	}
	return nil
}

// electionTime refuses an election time-out that is longer than the lease of regions. With
// such a time-out each death of the active server would stop the work that the lease binds.
func electionTime(flags *pflag.FlagSet, value string) error {
	ttl, err := time.ParseDuration(value)
	switch lease, lerr := flags.GetDuration("lease"); {
	case err != nil || lerr != nil || ttl < time.Second:
		return fmt.Errorf("--election-ttl: %s is too short: give at least 1s", value)
	case ttl > cmp.Or(lease, global.DefaultLease):
		return fmt.Errorf("--election-ttl: %s is longer than the lease of regions (--lease, %s), so the death of a server would stop work that the lease binds: give less",
			value, cmp.Or(lease, global.DefaultLease))
	}
	return nil
}

func checkFlag(flags *pflag.FlagSet, f *pflag.Flag) error {
	value := f.Value.String()
	items, many := f.Value.(pflag.SliceValue)
	switch {
	case f.Name == "region" && !job.ValidName(value):
		return fmt.Errorf("--region: %q is not a name of a region: lower-case letters, digits and dashes", value)
	case f.Name == "plugin":
		return pluginNames(flags, f.Name)
	case strings.HasSuffix(f.Name, "-addr") && value != "" && value != "-":
		return hostPort(f.Name, value)
	case strings.HasPrefix(value, "-") && (f.Value.Type() == "duration" || strings.HasPrefix(f.Value.Type(), "int")):
		return fmt.Errorf("--%s: %s is negative", f.Name, value)
	case f.Name == "lease" && f.Changed: // 0 without the flag means the default
		return leaseLength(f.Name, value, global.MinLease)
	case f.Name == "node-lease" && f.Changed:
		return leaseLength(f.Name, value, minNodeLease)
	case f.Name == "election-ttl" && f.Changed:
		return electionTime(flags, value)
	case many:
		named, err := trimList(flags, f.Name, items.GetSlice())
		if err != nil {
			return err
		}
		for _, item := range named {
			if !slices.Contains([]string{"join", "global", "servers", "etcd-endpoints"}, f.Name) {
				break // the flag does not hold addresses
			}
			if err := hostPort(f.Name, item); err != nil {
				return err
			}
		}
		return items.Replace(named)
	}
	return nil
}

// pluginNames refuses names of plugins that no job can use as a driver.
func pluginNames(flags *pflag.FlagSet, flag string) error {
	plugins, err := flags.GetStringToString(flag)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		if err := job.CheckPluginName(name); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// hostPort refuses an address on which no program can listen, or to which none can connect.
func hostPort(flag, address string) error {
	bare := address
	if _, rest, url := strings.Cut(address, "://"); url {
		bare = strings.TrimSuffix(rest, "/")
	}
	_, port, err := net.SplitHostPort(bare)
	if err != nil {
		return fmt.Errorf("--%s: %q is not host:port", flag, address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--%s: %q: %q is not a port of 0..65535", flag, address, port)
	} else if n == 0 && !strings.HasSuffix(flag, "-addr") {
		return fmt.Errorf("--%s: %q: port 0 cannot be reached", flag, address)
	}
	return nil
}
