package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/internal/config"
	"github.com/nusa-scheduler/nusa/security/member"
)

// openListeners returns, sorted, a fault for each listener that other machines reach, and that
// neither encrypts nor asks for an identity. Latency probes have no such listener: they carry
// times only. joins says that the role has an identity in its data directory, or gets one.
func openListeners(flags *pflag.FlagSet, joins bool) []string {
	var faults []string
	flags.VisitAll(func(f *pflag.Flag) {
		address := f.Value.String()
		if !isListener(f) || f.Name == "probe-addr" || address == "" || address == "-" || isLoopback(address) {
			return
		}
		need := "identity"
		switch f.Name {
		case "gossip-addr":
			if givesGossipKeys(flags) {
				return
			}
			need = "gossip-key-file"
		case "etcd-peer-addr":
			if outside := flags.Lookup("etcd-endpoints"); outside != nil && outside.Value.String() != "[]" {
				return // there is no embedded member
			}
		}
		etcd := strings.HasPrefix(f.Name, "etcd-") // its ports are open before the store has issued an identity
		if need == "identity" && joins && (!etcd || flags.Lookup("ca-cert").Value.String() != "") {
			return
		}
		if need == "identity" && flags.Lookup(socketFlag).Value.String() != "" {
			return
		}
		if flags.Lookup(need).Value.String() == "" {
			faults = append(faults, fmt.Sprintf("--%s %s: other machines reach it, and it is not encrypted: give %s", f.Name, address, remedy(flags, need, etcd)))
		}
	})
	slices.Sort(faults)
	return faults
}

// givesGossipKeys reports whether the federation has given a regional server the keys of gossip, or may
// give them when the server joins. checkGossip is called after that.
func givesGossipKeys(flags *pflag.FlagSet) bool {
	if flags.Lookup("join-token-file").Value.String() != "" || os.Getenv(tokenVariable) != "" {
		return true
	}
	_, err := os.Stat(filepath.Join(flags.Lookup("data-dir").Value.String(), identityFolder, member.GossipKeysFile))
	return err == nil
}

// checkGossip refuses gossip without keys that other machines reach, unless insecure says that this is
// meant. file has the keys, or is empty.
func checkGossip(address, file string, insecure bool) error {
	if file != "" || insecure || isLoopback(address) {
		return nil
	}
	return fmt.Errorf("--gossip-addr %s: other machines reach it, and the federation has given no keys to this server: give --gossip-key-file, the same as at the other servers of the region", address)
}

// remedy names the flags that encrypt a listener.
func remedy(flags *pflag.FlagSet, need string, etcd bool) string {
	switch {
	case need != "identity":
		return "--" + need
	case etcd:
		return "--ca-cert and --ca-key, or --identity"
	case flags.Lookup("secure") != nil:
		return "--secure, or --identity"
	}
	return "--join-token-file, or --identity"
}

// checkExposed refuses listeners that everybody on the network could use, unless insecure says
// that this is meant.
func checkExposed(flags *pflag.FlagSet, insecure bool) error {
	if insecure {
		return nil
	}
	return exposed(openListeners(flags, joins(flags)))
}

// exposed returns the error for faults of openListeners.
func exposed(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return cli.Faults(append(faults, fmt.Sprintf("every process that reaches such a port may run commands on every node; "+
		"on a network where you trust everybody --insecure (or %s=true) allows it", config.EnvName("insecure"))))
}

// insecureEvery is how often a role repeats that its listeners are open to everybody.
const insecureEvery = time.Hour

// warnExposed logs now and each hour that listeners are open to everybody. The caller calls stop
// when the role has ended.
func warnExposed(logger *slog.Logger, flags *pflag.FlagSet) (stop func()) {
	faults := openListeners(flags, joins(flags))
	if len(faults) == 0 {
		return func() {}
	}
	warn := func() {
		logger.Warn("--insecure: every process that reaches these ports may run commands on every node", "listeners", strings.Join(faults, "; "))
	}
	warn()
	tick, done := time.NewTicker(insecureEvery), make(chan struct{})
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				warn()
			}
		}
	}()
	return func() { close(done) }
}
