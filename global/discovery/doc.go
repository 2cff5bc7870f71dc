// Package discovery passes the healthy instances of services on between the regions, and answers
// questions about them. What the active server knows is soft: each region publishes again to a new
// active server, and keeps what it has until then.
//
//   - exchange.go: Exchange: the instances of all regions during one leadership term
//   - server.go: the services Discovery and Services
package discovery
