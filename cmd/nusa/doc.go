// Command nusa is the program of every role, and the client. `nusa global`, `nusa regional`
// and `nusa agent` run a tier, and `nusa dev` runs all tiers. The other commands are
// clients of a running federation.
//
//   - main.go: the command tree
//   - roles.go: nusa global, regional and agent, with their flags
//   - role.go: settings from flags, environment and file, and nusa config
//   - joining.go: the identity of a role: joins with a token, renewals, and --secure
//   - identitysocket.go: the identity of a role from a SPIFFE Workload API
//   - auditflags.go: the flags of the audit trail
//   - restore.go: nusa regional restore
//   - bind.go: --bind, and the warning about servers that only listen on loopback
//   - limits.go: flags for the rates of callers
//   - exposed.go: listeners without encryption that other machines reach
//   - check.go: checks of flags before a role starts
//   - cores.go: no core files of servers
//   - devcmd.go: nusa dev and nusa demo
//   - devprofile.go: the identity that commands find while nusa dev runs
//   - demo_failover.go: nusa demo --failover
//   - output.go: the end of nusa dev when nothing reads its output
//
// The folder client has the commands of a client, by noun; bench has nusa bench; ca has nusa
// ca; dev runs all tiers in one process.
package main
