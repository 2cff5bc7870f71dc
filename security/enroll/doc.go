// Package enroll gives certificates to the members of a federation. A global server serves new
// regional servers, and a server of a region serves the agents of that region. Package join
// decides; this package reads and stores what join decides about.
//
//   - store.go: Store, where a tier keeps the records
//   - records.go: the stored records, and what join reads
//   - issuer.go: Issuer, which signs certificates
//   - server.go: Server, and what its services share
//   - identity.go: the service Identity
//   - tokens.go: the service Tokens
//   - members.go: Members: who has joined, and bans
//   - removal.go: Members: removed members, and records that nobody needs any more
//   - roster.go: Members: registered nodes, and the join policy
//   - limit.go: a bound for failed joins
//   - authority.go: the record of the federation's root, and its change to another one
//   - rings.go: rings of keys for gossip and probes
//   - lags.go: what members have, and who does not have what it should
package enroll
