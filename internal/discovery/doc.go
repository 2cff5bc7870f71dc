// Package discovery holds the healthy instances of services, by region, and keeps copies of them equal
// over connections that may break. Global servers, regional servers and agents use it. Each region
// numbers its own instances, and the tiers pass these numbers on. So a receiver resumes at any server,
// and a new active global server removes nothing.
//
//   - store.go: Store: the instances of all regions, within bounds
//   - roster.go: Roster: which regions there are, how far they are, and which are silent; ages
//   - changes.go: batches of changes become contents of the store
//   - follow.go: sends what a receiver lacks
//   - client.go: the callers of Follow and Publish
//   - answer.go: the service Services: answers from a store
//   - list.go: pages of the list of services
//   - targets.go: instances in the form that Prometheus reads
//   - file.go: copies in files
//   - convert.go: messages to values and back
package discovery
