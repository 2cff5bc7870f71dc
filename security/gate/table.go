package gate

import (
	"fmt"
	"strings"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// callers returns the members that may make a call to a server.
type callers func(server identity.ID) identity.Rules

// everyMember are all members that have certificates.
func everyMember(identity.ID) identity.Rules {
	return identity.Rules{{Kind: identity.Global}, {Kind: identity.Server}, {Kind: identity.Agent}, {Kind: identity.Operator}}
}

// users use the API. A global server uses the API of a region for an operator.
func users(identity.ID) identity.Rules {
	return identity.Rules{{Kind: identity.Operator}, {Kind: identity.Global}}
}

// usersAndServers are users and all regional servers. A region without a global tier reads the
// round trips of the other regions from their servers.
func usersAndServers(identity.ID) identity.Rules {
	return identity.Rules{{Kind: identity.Operator}, {Kind: identity.Global}, {Kind: identity.Server}}
}

// regions are the regional servers that have a session with a global server.
func regions(s identity.ID) identity.Rules {
	if s.Kind != identity.Global {
		return nil
	}
	return identity.Rules{{Kind: identity.Server}}
}

// ownAgents are the agents of the server's region, and ownServers are the servers of that
// region. A global server has none.
func ownAgents(s identity.ID) identity.Rules  { return identity.AgentsOf(s.Region) }
func ownServers(s identity.ID) identity.Rules { return identity.ServersOf(s.Region) }

// table has a row for each service, or for a method that differs from its service. A name that
// ends with a slash is a service. What has no row is refused.
var table = []struct {
	name string
	may  callers
}{
	{"/grpc.health.v1.Health/", everyMember},
	{"/grpc.reflection.v1.ServerReflection/", usersAndServers},
	{"/grpc.reflection.v1alpha.ServerReflection/", usersAndServers},
	{"/nusa.v1.System/Info", everyMember},
	{"/nusa.v1.System/", users},
	{"/nusa.v1.Federation/", regions},
	{"/nusa.v1.Dispatch/", ownAgents},
	{"/nusa.v1.Siblings/", ownServers},
	{"/nusa.v1.Topology/Matrix", usersAndServers},
	{"/nusa.v1.Topology/", users},
	{"/nusa.v1.Jobs/", users},
	{"/nusa.v1.Allocations/", users},
	{"/nusa.v1.Regions/", users},
	{"/nusa.v1.Nodes/", users},
	{"/nusa.v1.Origins/", users},
	{"/nusa.v1.Events/", users},
	{"/nusa.v1.Audit/", users},
}

// Allow returns an error if a member may not call a full method of a server.
func Allow(server identity.ID, method string, caller identity.ID) error {
	for _, row := range table {
		if method != row.name && !(strings.HasSuffix(row.name, "/") && strings.HasPrefix(method, row.name)) {
			continue
		}
		if caller.Federation == server.Federation && row.may(server).Check(caller) == nil {
			return nil
		}
		return fmt.Errorf("%s may not call %s at %s: allowed is %s", caller.Describe(), method, server.Describe(), row.may(server))
	}
	return fmt.Errorf("%s may not call %s at %s: no rule allows this call", caller.Describe(), method, server.Describe())
}

// Listener returns the members that may connect to a server's gRPC listener.
func Listener(server identity.ID) identity.Rules {
	if server.Kind == identity.Global {
		return usersAndServers(server)
	}
	return append(identity.AgentsOf(server.Region), identity.Rule{Kind: identity.Server}, identity.Rule{Kind: identity.Operator})
}

// forwards reports whether a peer may forward calls of others to a server: another server of
// the same tier, and of the same region.
func forwards(server, peer identity.ID) bool {
	return peer.Kind == server.Kind && peer.Region == server.Region && peer.Federation == server.Federation
}
