package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/internal/config"
	"github.com/nusa-scheduler/nusa/internal/serve"
)

const bindUsage = "address of all listeners, also advertised; --advertise and a listener's own flag have priority (default: loopback)"

// applyBind gives the host of --bind to every listener whose own flag is not set, and
// advertises that host. The ports of the listeners do not change. Call applyBind when the
// flags have their final values.
func applyBind(flags *pflag.FlagSet) error {
	several, err := derivePeerAddr(flags)
	if err != nil {
		return err
	}
	host, err := bindHost(flags)
	if err != nil || host == "" {
		return err
	}
	wildcard := isWildcard(host)
	derive := func(name, value string) error {
		if flags.Lookup(name) == nil {
			return nil
		}
		return config.Derive(flags, name, value, "bind")
	}
	advertise := flags.Lookup("advertise")
	if wildcard && advertise != nil && advertise.Value.String() == "" {
		return fmt.Errorf("--bind: no other machine can reach the address %s: give the address of this server with --advertise", host)
	}
	if wildcard && several {
		return fmt.Errorf("--bind: the embedded etcd advertises its addresses, and no other machine can reach %s: name one address of this server", host)
	}
	listener := flags.Lookup("grpc-addr")
	if advertise != nil && !wildcard && !listener.Changed {
		value := host
		if flags.Lookup("raft-addr") == nil { // a global server advertises host:port, and a regional server a host
			value = withHost(host, listener.Value.String())
		}
		if err := derive("advertise", value); err != nil {
			return err
		}
	}
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		if failed == nil && isListener(f) && f.Value.String() != "" {
			failed = derive(f.Name, withHost(host, f.Value.String()))
		}
	})
	return failed
}

// derivePeerAddr takes the peer address of an embedded etcd member from --etcd-initial-cluster,
// unless its own flag is set. It reports whether there are several embedded members.
func derivePeerAddr(flags *pflag.FlagSet) (several bool, err error) {
	if flags.Lookup("etcd-peer-addr") == nil {
		return false, nil
	}
	members, err := flags.GetStringSlice("etcd-initial-cluster")
	if err != nil || len(members) < 2 {
		return false, err
	}
	for _, member := range members {
		name, addr, _ := strings.Cut(member, "=")
		if _, rest, url := strings.Cut(addr, "://"); url {
			addr = rest
		}
		if name == flags.Lookup("name").Value.String() {
			return true, config.Derive(flags, "etcd-peer-addr", addr, "etcd-initial-cluster")
		}
	}
	return true, fmt.Errorf("--etcd-initial-cluster: it does not name this server: add %s=HOST:PORT, or set --name", flags.Lookup("name").Value)
}

// bindHost returns the host of --bind, or "" if the flag is not set.
func bindHost(flags *pflag.FlagSet) (string, error) {
	host := flags.Lookup("bind").Value.String()
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" {
		return "", nil
	}
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":/ ") {
		return "", fmt.Errorf("--bind: %q is not an IP address or a host: the listeners have ports of their own, such as --grpc-addr", host)
	}
	return host, nil
}

// boundAddress returns the address of --bind if other machines can reach it, or "".
func boundAddress(flags *pflag.FlagSet) string {
	host, err := bindHost(flags)
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.IsGlobalUnicast() {
		return ""
	}
	return ip.String()
}

func isListener(f *pflag.Flag) bool { return strings.HasSuffix(f.Name, "-addr") }

func withHost(host, address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil { // the listener is turned off
		return address
	}
	return net.JoinHostPort(host, port)
}

func isWildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// explainBind says that an address which is not one of this machine comes from --bind.
func explainBind(flags *pflag.FlagSet, err error) error {
	host := flags.Lookup("bind").Value.String()
	if host == "" || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		return err
	}
	return fmt.Errorf("%w, or --bind, which is %s", err, host)
}

// isLoopback reports whether only this machine can reach an address. The address is
// "host:port", a URL or NAME=host:port. A host name other than localhost counts as another
// machine.
func isLoopback(address string) bool {
	if _, rest, url := strings.Cut(address, "://"); url {
		address = strings.TrimSuffix(rest, "/")
	}
	_, pair, named := strings.Cut(address, "=") // NAME=host:port of a member of etcd
	if named {
		address = pair
	}
	return serve.Loopback(address)
}

// peerFlags are the flags that name other servers.
var peerFlags = []string{"join", "global", "etcd-endpoints", "etcd-initial-cluster"}

// loopbackWarning returns a warning if a server joins servers on other machines although it
// listens on loopback only, so that they cannot reach it. Else it returns "". An agent gets
// no warning, because no other process calls it.
func loopbackWarning(flags *pflag.FlagSet) string {
	reachable := flags.Lookup("grpc-addr") == nil
	flags.VisitAll(func(f *pflag.Flag) {
		if isListener(f) && f.Name != "http-addr" && f.Value.String() != "" {
			reachable = reachable || !isLoopback(f.Value.String())
		}
	})
	if reachable {
		return ""
	}
	for _, name := range peerFlags {
		f := flags.Lookup(name)
		if f == nil {
			continue
		}
		for _, peer := range f.Value.(pflag.SliceValue).GetSlice() {
			if !isLoopback(peer) {
				return fmt.Sprintf("--%s %s is on another machine, which cannot reach this server: it listens on loopback only; give it an address with --bind (or %s)",
					name, peer, config.EnvName("bind"))
			}
		}
	}
	return ""
}

// warnLoopback writes the warning to the log, and to standard error for a person who starts
// the role by hand.
func warnLoopback(logger *slog.Logger, stderr io.Writer, text string) {
	if text == "" {
		return
	}
	logger.Warn("listens on loopback only", "problem", text)
	fmt.Fprintln(stderr, "nusa: warning: "+text)
}
