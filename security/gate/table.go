package gate

import (
	"fmt"
	"slices"
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

// globals are the global servers. No operator may make their calls.
func globals(identity.ID) identity.Rules { return identity.Rules{{Kind: identity.Global}} }

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

// copiesOfServices are the members that have a copy of all services: the regional servers at a global
// server, and the agents and the servers of the region at a regional server.
func copiesOfServices(s identity.ID) identity.Rules {
	if s.Kind == identity.Global {
		return regions(s)
	}
	return append(identity.AgentsOf(s.Region), identity.ServersOf(s.Region)...)
}

// row says who may call a method, and what the method does.
type row struct {
	// name is a full method. A name that ends with a slash stands for all methods of a service
	// that have no row of their own.
	name string
	may  callers
	// verb and kind are what an operator or a token needs. They are empty for methods that every
	// operator may call, and for methods that no operator may call.
	verb, kind string
	// at reads the place from a request.
	at reader
	// list: the handler leaves out what the caller may not read. So a caller that may read
	// something somewhere may call the method.
	list bool
	// or is another kind of a list. The right to the verb on it somewhere is enough, too.
	or string
}

// table has the rows of all methods. What has no row is refused.
var table = []row{
	{name: "/grpc.health.v1.Health/", may: everyMember},
	{name: "/grpc.reflection.v1.ServerReflection/", may: usersAndServers},
	{name: "/grpc.reflection.v1alpha.ServerReflection/", may: usersAndServers},
	{name: "/nusa.v1.System/Info", may: everyMember},
	{name: "/nusa.v1.System/Recover", may: users, verb: "recover", kind: "system", at: everywhere},
	{name: "/nusa.v1.Federation/", may: regions},
	{name: "/nusa.v1.Dispatch/", may: ownAgents},
	{name: "/nusa.v1.Siblings/", may: ownServers},
	{name: "/nusa.v1.Discovery/Publish", may: regions},
	{name: "/nusa.v1.Discovery/Follow", may: copiesOfServices},

	{name: "/nusa.v1.Jobs/Submit", may: users, verb: "submit", kind: "job", at: unknown},
	{name: "/nusa.v1.Jobs/SubmitMany", may: users, verb: "submit", kind: "job", at: unknown},
	{name: "/nusa.v1.Jobs/Plan", may: users, verb: "plan", kind: "job", at: unknown},
	{name: "/nusa.v1.Jobs/Get", may: users, verb: "read", kind: "job", at: ofJob},
	{name: "/nusa.v1.Jobs/List", may: users, verb: "read", kind: "job", at: ofNamespace, list: true},
	{name: "/nusa.v1.Jobs/Stop", may: users, verb: "stop", kind: "job", at: ofJob},
	{name: "/nusa.v1.Jobs/Explain", may: users, verb: "read", kind: "job", at: ofJob},
	{name: "/nusa.v1.Jobs/Watch", may: users, verb: "read", kind: "job", at: ofJob},
	{name: "/nusa.v1.Jobs/WatchGroups", may: users, verb: "read", kind: "job", at: ofNamespace},

	{name: "/nusa.v1.Schedules/Get", may: users, verb: "read", kind: "job", at: ofJob},
	{name: "/nusa.v1.Schedules/List", may: users, verb: "read", kind: "job", at: ofNamespace, list: true},
	{name: "/nusa.v1.Schedules/Pause", may: users, verb: "submit", kind: "job", at: ofJob},
	{name: "/nusa.v1.Schedules/Resume", may: users, verb: "submit", kind: "job", at: ofJob},
	{name: "/nusa.v1.Schedules/Trigger", may: users, verb: "dispatch", kind: "job", at: ofJob},
	{name: "/nusa.v1.Schedules/Backfill", may: users, verb: "dispatch", kind: "job", at: ofJob},
	{name: "/nusa.v1.Schedules/Dispatch", may: users, verb: "dispatch", kind: "job", at: ofJob},

	{name: "/nusa.v1.Workflows/Run", may: users, verb: "dispatch", kind: "job", at: ofJob},
	{name: "/nusa.v1.Workflows/List", may: users, verb: "read", kind: "job", at: ofNamespace, list: true},
	{name: "/nusa.v1.Workflows/Get", may: users, verb: "read", kind: "job", at: ofWorkflowRun},
	{name: "/nusa.v1.Workflows/Graph", may: users, verb: "read", kind: "job", at: ofWorkflowRun},
	{name: "/nusa.v1.Workflows/Retry", may: users, verb: "dispatch", kind: "job", at: ofWorkflowRun},
	{name: "/nusa.v1.Workflows/Approve", may: users, verb: "dispatch", kind: "job", at: ofWorkflowRun},
	{name: "/nusa.v1.Workflows/Cancel", may: users, verb: "stop", kind: "job", at: ofWorkflowRun},

	{name: "/nusa.v1.Allocations/List", may: users, verb: "read", kind: "allocation", at: ofAllocations, list: true},
	{name: "/nusa.v1.Allocations/Get", may: users, verb: "read", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/Stop", may: users, verb: "stop", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/Logs", may: users, verb: "logs", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/Exec", may: users, verb: "exec", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/Restart", may: users, verb: "restart", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/Signal", may: users, verb: "signal", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/ListFiles", may: users, verb: "files", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/ReadFile", may: users, verb: "files", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Allocations/Stats", may: users, verb: "read", kind: "allocation", at: unknown},

	{name: "/nusa.v1.Services/List", may: users, verb: "read", kind: "allocation", at: ofNamespace, list: true},
	{name: "/nusa.v1.Services/Resolve", may: users, verb: "read", kind: "allocation", at: ofService},

	{name: "/nusa.v1.Regions/Define", may: users, verb: "define", kind: "region", at: ofDefinition},
	{name: "/nusa.v1.Regions/List", may: users, verb: "read", kind: "region", at: everywhere, list: true},
	{name: "/nusa.v1.Regions/Get", may: users, verb: "read", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Cordon", may: users, verb: "cordon", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Remove", may: users, verb: "remove", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Watch", may: users, verb: "read", kind: "region", at: everywhere, list: true},
	{name: "/nusa.v1.Regions/Verify", may: users, verb: "verify", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Drain", may: users, verb: "drain", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Lose", may: users, verb: "lose", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Failback", may: users, verb: "failback", kind: "region", at: ofName},
	{name: "/nusa.v1.Regions/Rebind", may: users, verb: "rebind", kind: "region", at: everywhere},

	{name: "/nusa.v1.Nodes/List", may: users, verb: "read", kind: "node", at: ofRegion, list: true},
	{name: "/nusa.v1.Nodes/Get", may: users, verb: "read", kind: "node", at: ofNode},
	{name: "/nusa.v1.Nodes/Drain", may: users, verb: "drain", kind: "node", at: ofNode},
	{name: "/nusa.v1.Nodes/Cordon", may: users, verb: "cordon", kind: "node", at: ofNode},
	{name: "/nusa.v1.Nodes/Remove", may: users, verb: "remove", kind: "node", at: ofNode},

	{name: "/nusa.v1.Pools/List", may: users, verb: "read", kind: "pool", at: ofRegion, list: true},
	{name: "/nusa.v1.Pools/Get", may: users, verb: "read", kind: "pool", at: ofMember},
	{name: "/nusa.v1.Pools/Set", may: users, verb: "set", kind: "pool", at: ofPool},
	{name: "/nusa.v1.Pools/Remove", may: users, verb: "remove", kind: "pool", at: ofMember},

	{name: "/nusa.v1.Topology/Get", may: users, verb: "read", kind: "topology", at: everywhere},
	{name: "/nusa.v1.Topology/Matrix", may: usersAndServers, verb: "read", kind: "topology", at: everywhere},
	{name: "/nusa.v1.Topology/Path", may: users, verb: "read", kind: "topology", at: everywhere},
	{name: "/nusa.v1.Topology/Nearest", may: users, verb: "read", kind: "topology", at: everywhere},
	{name: "/nusa.v1.Topology/Watch", may: users, verb: "read", kind: "topology", at: everywhere},
	{name: "/nusa.v1.Topology/Check", may: users, verb: "check", kind: "topology", at: everywhere},
	{name: "/nusa.v1.Topology/History", may: users, verb: "read", kind: "topology", at: ofRegion},

	{name: "/nusa.v1.Origins/Set", may: users, verb: "set", kind: "origin", at: everywhere},
	{name: "/nusa.v1.Origins/List", may: users, verb: "read", kind: "origin", at: everywhere},
	{name: "/nusa.v1.Origins/Remove", may: users, verb: "remove", kind: "origin", at: everywhere},
	{name: "/nusa.v1.Origins/Resolve", may: users, verb: "read", kind: "origin", at: everywhere},

	{name: "/nusa.v1.Events/Watch", may: users, verb: "read", kind: "event", at: ofRegion, list: true},
	{name: "/nusa.v1.Overview/Watch", may: users, verb: "read", kind: "region", at: everywhere, list: true, or: "job"},

	{name: "/nusa.v1.Audit/List", may: users, verb: "read", kind: "audit", at: ofRegion},
	{name: "/nusa.v1.Audit/Export", may: users, verb: "export", kind: "audit", at: ofRegion},
	{name: "/nusa.v1.Audit/Checkpoint", may: users, verb: "verify", kind: "audit", at: ofRegion},
	{name: "/nusa.v1.Audit/Forward", may: globals},

	{name: "/nusa.v1.Repairs/Run", may: users, verb: "reconcile", kind: "system", at: ofRegion},
	{name: "/nusa.v1.Monitor/Self", may: users, verb: "monitor", kind: "system", at: everywhere},
	{name: "/nusa.v1.Monitor/Member", may: users, verb: "monitor", kind: "system", at: ofRegion},
	{name: "/nusa.v1.Repairs/Slots", may: globals},
	{name: "/nusa.v1.Repairs/Orders", may: ownServers},

	{name: "/nusa.v1.Auth/WhoAmI", may: users},
	{name: "/nusa.v1.Auth/CanI", may: users},
	{name: "/nusa.v1.Auth/ListRoles", may: users, verb: "read", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/SetRole", may: users, verb: "set", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/RemoveRole", may: users, verb: "remove", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/ListBindings", may: users, verb: "read", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/SetBinding", may: users, verb: "set", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/RemoveBinding", may: users, verb: "remove", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/ListAccessTokens", may: users, verb: "read", kind: "token", at: everywhere},
	{name: "/nusa.v1.Auth/CreateAccessToken", may: users, verb: "create", kind: "token", at: everywhere},
	{name: "/nusa.v1.Auth/RevokeAccessToken", may: users, verb: "revoke", kind: "token", at: everywhere},

	{name: "/nusa.v1.Namespaces/Set", may: users, verb: "set", kind: "namespace", at: ofNewNamespace},
	{name: "/nusa.v1.Namespaces/Get", may: users, verb: "read", kind: "namespace", at: ofNamespaceName},
	{name: "/nusa.v1.Namespaces/List", may: users, verb: "read", kind: "namespace", at: everywhere, list: true},
	{name: "/nusa.v1.Namespaces/Remove", may: users, verb: "remove", kind: "namespace", at: ofNamespaceName},

	{name: "/nusa.v1.Webhooks/Set", may: users, verb: "set", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Get", may: users, verb: "read", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/List", may: users, verb: "read", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Remove", may: users, verb: "remove", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Rotate", may: users, verb: "set", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Test", may: users, verb: "send", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Log", may: users, verb: "read", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Replay", may: users, verb: "send", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Disable", may: users, verb: "set", kind: "webhook", at: everywhere},
	{name: "/nusa.v1.Webhooks/Enable", may: users, verb: "set", kind: "webhook", at: everywhere},

	{name: "/nusa.v1.Buses/Set", may: users, verb: "set", kind: "bus", at: everywhere},
	{name: "/nusa.v1.Buses/Get", may: users, verb: "read", kind: "bus", at: everywhere},
	{name: "/nusa.v1.Buses/List", may: users, verb: "read", kind: "bus", at: everywhere},
	{name: "/nusa.v1.Buses/Delete", may: users, verb: "remove", kind: "bus", at: everywhere},
	{name: "/nusa.v1.Buses/Test", may: users, verb: "send", kind: "bus", at: everywhere},
	{name: "/nusa.v1.Buses/Disable", may: users, verb: "set", kind: "bus", at: everywhere},
	{name: "/nusa.v1.Buses/Enable", may: users, verb: "set", kind: "bus", at: everywhere},

	{name: "/nusa.v1.Intakes/Set", may: users, verb: "set", kind: "intake", at: everywhere},
	{name: "/nusa.v1.Intakes/Get", may: users, verb: "read", kind: "intake", at: everywhere},
	{name: "/nusa.v1.Intakes/List", may: users, verb: "read", kind: "intake", at: everywhere},
	{name: "/nusa.v1.Intakes/Delete", may: users, verb: "remove", kind: "intake", at: everywhere},
	{name: "/nusa.v1.Intakes/Disable", may: users, verb: "set", kind: "intake", at: everywhere},
	{name: "/nusa.v1.Intakes/Enable", may: users, verb: "set", kind: "intake", at: everywhere},

	{name: "/nusa.v1.Rollouts/History", may: users, verb: "read", kind: "job", at: ofJob},
	{name: "/nusa.v1.Rollouts/Diff", may: users, verb: "read", kind: "job", at: ofJob},
	{name: "/nusa.v1.Rollouts/Revert", may: users, verb: "submit", kind: "job", at: unknown},
	{name: "/nusa.v1.Rollouts/Tag", may: users, verb: "submit", kind: "job", at: ofJob},
	{name: "/nusa.v1.Rollouts/Pause", may: users, verb: "submit", kind: "job", at: ofJob},
	{name: "/nusa.v1.Rollouts/Resume", may: users, verb: "submit", kind: "job", at: ofJob},
	{name: "/nusa.v1.Rollouts/Promote", may: users, verb: "submit", kind: "job", at: ofJob},
	{name: "/nusa.v1.Rollouts/Fail", may: users, verb: "submit", kind: "job", at: ofJob},

	{name: "/nusa.v1.Tasks/List", may: users, verb: "read", kind: "allocation", at: ofTasks, list: true},
	{name: "/nusa.v1.Tasks/Get", may: users, verb: "read", kind: "allocation", at: unknown},
	{name: "/nusa.v1.Tasks/Copy", may: ownServers},

	{name: "/nusa.v1.Overrides/List", may: users, verb: "read", kind: "job", at: ofNamespace, list: true},
	{name: "/nusa.v1.Overrides/Set", may: users, verb: "override", kind: "job", at: ofOverride},
	{name: "/nusa.v1.Overrides/Clear", may: users, verb: "override", kind: "job", at: ofOverride},

	{name: "/nusa.v1.Semaphores/Set", may: users, verb: "set", kind: "semaphore", at: ofSemaphore},
	{name: "/nusa.v1.Semaphores/Get", may: users, verb: "read", kind: "semaphore", at: ofSemaphore},
	{name: "/nusa.v1.Semaphores/List", may: users, verb: "read", kind: "semaphore", at: ofNamespace, list: true},
	{name: "/nusa.v1.Semaphores/Remove", may: users, verb: "remove", kind: "semaphore", at: ofSemaphore},

	{name: "/nusa.v1.DeadLetters/List", may: users, verb: "read", kind: "job", at: ofNamespace, list: true},
	{name: "/nusa.v1.DeadLetters/Get", may: users, verb: "read", kind: "job", at: unknown},
	{name: "/nusa.v1.DeadLetters/Redrive", may: users, verb: "submit", kind: "job", at: unknown},
	{name: "/nusa.v1.DeadLetters/Drop", may: users, verb: "stop", kind: "job", at: unknown},
	{name: "/nusa.v1.DeadLetters/Collect", may: globals},

	{name: "/nusa.v1.Reservations/Create", may: users, verb: "create", kind: "reservation", at: unknown},
	{name: "/nusa.v1.Reservations/Get", may: users, verb: "read", kind: "reservation", at: unknown},
	{name: "/nusa.v1.Reservations/List", may: users, verb: "read", kind: "reservation", at: ofNamespace, list: true},
	{name: "/nusa.v1.Reservations/Claim", may: users, verb: "claim", kind: "reservation", at: unknown},
	{name: "/nusa.v1.Reservations/Release", may: users, verb: "release", kind: "reservation", at: unknown},
	{name: "/nusa.v1.Reservations/Locate", may: globals},

	{name: "/nusa.v1.Spares/Prepare", may: users, verb: "prepare", kind: "spare", at: unknown},
	{name: "/nusa.v1.Spares/Get", may: users, verb: "read", kind: "spare", at: unknown},
	{name: "/nusa.v1.Spares/List", may: users, verb: "read", kind: "spare", at: ofNamespace, list: true},
	{name: "/nusa.v1.Spares/Release", may: users, verb: "release", kind: "spare", at: unknown},
	{name: "/nusa.v1.Spares/Cancel", may: users, verb: "cancel", kind: "spare", at: unknown},
	{name: "/nusa.v1.Spares/SetProvisioner", may: users, verb: "set", kind: "provisioner", at: everywhere},
	{name: "/nusa.v1.Spares/ListProvisioners", may: users, verb: "read", kind: "provisioner", at: everywhere},
	{name: "/nusa.v1.Spares/RemoveProvisioner", may: users, verb: "remove", kind: "provisioner", at: everywhere},

	{name: "/nusa.v1.Keys/GetAuthority", may: users, verb: "read", kind: "key", at: everywhere},
	{name: "/nusa.v1.Keys/RotateAuthority", may: users, verb: "rotate", kind: "key", at: everywhere},
	{name: "/nusa.v1.Keys/GetRing", may: users, verb: "read", kind: "key", at: ofRegion},
	{name: "/nusa.v1.Keys/ChangeRing", may: users, verb: "rotate", kind: "key", at: ofRegion},
	{name: "/nusa.v1.Auth/ListProviders", may: users},
	{name: "/nusa.v1.Auth/SetProvider", may: users, verb: "set", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/RemoveProvider", may: users, verb: "set", kind: "role", at: everywhere},
	{name: "/nusa.v1.Auth/Login", may: users},
	{name: "/nusa.v1.Auth/Logout", may: users},

	{name: "/nusa.v1.Identity/Join", may: everyMember},
	{name: "/nusa.v1.Identity/Renew", may: everyMember},
	{name: "/nusa.v1.Tokens/Create", may: users, verb: "create", kind: "token", at: ofRegion},
	{name: "/nusa.v1.Tokens/List", may: users, verb: "read", kind: "token", at: ofRegion},
	{name: "/nusa.v1.Tokens/Revoke", may: users, verb: "revoke", kind: "token", at: ofRegion},
	{name: "/nusa.v1.Members/List", may: users, verb: "read", kind: "node", at: ofRegion},
	{name: "/nusa.v1.Members/Ban", may: users, verb: "ban", kind: "node", at: ofMember},
	{name: "/nusa.v1.Members/Unban", may: users, verb: "ban", kind: "node", at: ofMember},
	{name: "/nusa.v1.Members/BanRegion", may: users, verb: "ban", kind: "region", at: ofMember},
	{name: "/nusa.v1.Members/UnbanRegion", may: users, verb: "ban", kind: "region", at: ofMember},
	{name: "/nusa.v1.Members/RemoveServer", may: users, verb: "remove", kind: "region", at: ofMember},
	{name: "/nusa.v1.Members/Register", may: users, verb: "register", kind: "node", at: ofRegion},
	{name: "/nusa.v1.Members/Unregister", may: users, verb: "register", kind: "node", at: ofRegion},
	{name: "/nusa.v1.Members/GetPolicy", may: users, verb: "read", kind: "node", at: ofRegion},
	{name: "/nusa.v1.Members/SetPolicy", may: users, verb: "register", kind: "node", at: ofRegion},
}

// rows finds the row of a full method.
var rows = func() map[string]*row {
	out := map[string]*row{}
	for i := range table {
		out[table[i].name] = &table[i]
	}
	return out
}()

// rowOf returns the row of a full method, or nil.
func rowOf(method string) *row {
	if r := rows[method]; r != nil && !strings.HasSuffix(method, "/") {
		return r
	}
	if i := strings.LastIndexByte(method, '/'); i > 0 && i < len(method)-1 {
		return rows[method[:i+1]]
	}
	return nil
}

// forStrangers reports whether a caller without a certificate may call a method.
func forStrangers(method string) bool {
	return joins(method) || method == "/nusa.v1.Auth/ListProviders" || method == "/nusa.v1.Auth/Login"
}

// joins reports whether a method is for members that have no certificate yet.
func joins(method string) bool {
	return strings.HasPrefix(method, "/nusa.v1.Identity/") || method == "/grpc.health.v1.Health/Check"
}

// Allow returns an error if a member may not call a full method of a server.
func Allow(server identity.ID, method string, caller identity.ID) error {
	r := rowOf(method)
	if r == nil {
		return fmt.Errorf("%s may not call %s at %s: no rule allows this call", caller.Describe(), method, server.Describe())
	}
	if caller.Federation == server.Federation && r.may(server).Check(caller) == nil {
		return nil
	}
	return fmt.Errorf("%s may not call %s at %s: allowed is %s", caller.Describe(), method, server.Describe(), r.may(server))
}

// Listener returns the members that may connect to a server's gRPC listener.
func Listener(server identity.ID) identity.Rules {
	if server.Kind == identity.Global {
		return usersAndServers(server)
	}
	return append(identity.AgentsOf(server.Region), identity.Rule{Kind: identity.Server}, identity.Rule{Kind: identity.Operator})
}

// Listeners are the members that may connect to each gRPC listener of a server.
type Listeners struct {
	// Main is the listener that each server has. API is one for operators. Members is one for the
	// regional servers of a global server, or for the agents of a region.
	Main, API, Members identity.Rules
}

// Split returns who may connect to which listener of a server. api and members say whether the
// server has these listeners: then the main one does not accept their callers.
func Split(server identity.ID, api, members bool) Listeners {
	below := identity.Rule{Kind: identity.Server}
	if server.Kind == identity.Server {
		below = identity.AgentsOf(server.Region)[0]
	}
	return Listeners{
		Main: slices.DeleteFunc(slices.Clone(Listener(server)), func(r identity.Rule) bool {
			return api && r.Kind == identity.Operator || members && r.Kind == below.Kind
		}),
		API: identity.Rules{{Kind: identity.Operator}}, Members: identity.Rules{below},
	}
}

// forwards reports whether a peer may forward calls of others to a server: another server of
// the same tier, and of the same region.
func forwards(server, peer identity.ID) bool {
	return peer.Kind == server.Kind && peer.Region == server.Region && peer.Federation == server.Federation
}
