package client

import (
	"context"
	"errors"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nusa-scheduler/nusa/internal/grpcdial"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Options say which servers a client calls, and as whom.
type Options struct {
	// Addresses are servers, HOST:PORT, of the federation or of one region. A server without a
	// port has port 7600. The client uses the first one that can be reached, and goes on with
	// the next one when a server fails. Required without Socket.
	Addresses []string
	// Socket is the path of the Unix socket of a server on this machine, nusa.sock in its data
	// directory. The server knows the user of this process, so no credentials are needed.
	Socket string

	// Identity is a folder with the certificate of an operator: cert.pem, key.pem and roots.pem.
	// Changed files are read again.
	Identity string
	// Roots are the roots of the federation in PEM, for a client with a token and without an
	// identity.
	Roots []byte
	// Token returns the access token for a call. It is sent over TLS only. Nil: none.
	Token func(context.Context) (string, error)
	// Insecure allows connections that are not encrypted. It is refused together with Identity,
	// Roots and Token.
	Insecure bool
	// Credentials replace Identity and Roots.
	Credentials credentials.TransportCredentials

	// Retries bounds how many times a call is repeated: see Client. Default 5, negative for 0.
	Retries int
	// Dial opens a connection. Default: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// GRPC are further options of the connection.
	GRPC []grpc.DialOption
}

// Client calls the servers of a federation or of a region. A Client is safe for concurrent use.
//
// A call is repeated when no server has received it, and when the server says that it has not
// executed it because no server leads at the moment. After a broken connection only calls that
// change nothing, and requests with an idempotency key, are repeated. Between two attempts the
// client waits from 100 ms to 2 s, or as long as the server asks. The context of a call bounds all
// attempts together.
type Client struct {
	conn    *grpc.ClientConn
	servers *servers
	dialer  *rpcerr.Dialer
	retries int
}

// defaultRetries is the default of Options.Retries. Together the pauses take about 3 s, which is
// longer than an election.
const defaultRetries = 5

// Open returns a client. It connects at the first call. The caller must call Close.
func Open(o Options) (*Client, error) {
	c := &Client{retries: o.Retries}
	switch {
	case c.retries == 0:
		c.retries = defaultRetries
	case c.retries < 0:
		c.retries = 0
	}
	var err error
	c.servers, err = newServers(&o)
	if err != nil {
		return nil, err
	}
	creds, err := transport(&o)
	if err != nil {
		return nil, err
	}
	c.dialer = &rpcerr.Dialer{Dial: c.servers.dial}
	options := []grpc.DialOption{grpc.WithTransportCredentials(creds), grpc.WithUnaryInterceptor(c.unary), grpc.WithStreamInterceptor(c.stream)}
	if o.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearer{o.Token}))
	}
	c.conn, err = grpcdial.New(c.dialer.DialContext, c.servers.authority(), append(options, slices.Clone(o.GRPC)...)...)
	if err != nil {
		return nil, errors.Join(errors.New("client"), err)
	}
	return c, nil
}

// Close ends the connection and all calls.
func (c *Client) Close() error { return c.conn.Close() }

// Conn returns the connection, for services that have no method here.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Addresses returns the servers, HOST:PORT. There is none for a socket.
func (c *Client) Addresses() []string { return slices.Clone(c.servers.addrs) }

// DialError returns why the latest connection could not be opened, or nil if it could.
func (c *Client) DialError() error { return c.dialer.Err() }

// NextServer ends the connection to the present server, so that the next call goes to the next
// server. Streams of other calls break. It does nothing if there is only one server.
func (c *Client) NextServer() { c.servers.next() }

// Jobs returns the client of the service Jobs. The methods below return the clients of the other
// services.
func (c *Client) Jobs() nusav1.JobsClient { return nusav1.NewJobsClient(c.conn) }

// Allocations shows instances, their logs, and runs commands in them.
func (c *Client) Allocations() nusav1.AllocationsClient { return nusav1.NewAllocationsClient(c.conn) }

// Regions defines, shows, cordons and removes regions.
func (c *Client) Regions() nusav1.RegionsClient { return nusav1.NewRegionsClient(c.conn) }

// Nodes shows, cordons, drains and removes nodes.
func (c *Client) Nodes() nusav1.NodesClient { return nusav1.NewNodesClient(c.conn) }

// Topology shows regions, round trips and paths.
func (c *Client) Topology() nusav1.TopologyClient { return nusav1.NewTopologyClient(c.conn) }

// Origins stores which regions serve a domain.
func (c *Client) Origins() nusav1.OriginsClient { return nusav1.NewOriginsClient(c.conn) }

// Events reports what happens.
func (c *Client) Events() nusav1.EventsClient { return nusav1.NewEventsClient(c.conn) }

// System describes the called server.
func (c *Client) System() nusav1.SystemClient { return nusav1.NewSystemClient(c.conn) }

// Overview feeds pages that show the present state.
func (c *Client) Overview() nusav1.OverviewClient { return nusav1.NewOverviewClient(c.conn) }

// Namespaces stores limits of namespaces.
func (c *Client) Namespaces() nusav1.NamespacesClient { return nusav1.NewNamespacesClient(c.conn) }

// Auth stores roles, bindings and access tokens.
func (c *Client) Auth() nusav1.AuthClient { return nusav1.NewAuthClient(c.conn) }

// Audit reads the audit trail.
func (c *Client) Audit() nusav1.AuditClient { return nusav1.NewAuditClient(c.conn) }

// Reservations takes room on nodes for what another system creates there.
func (c *Client) Reservations() nusav1.ReservationsClient {
	return nusav1.NewReservationsClient(c.conn)
}

// Overrides stops or scales what one region runs of a job of the federation.
func (c *Client) Overrides() nusav1.OverridesClient { return nusav1.NewOverridesClient(c.conn) }

// Pools keeps what counts in the scores of the nodes of a pool.
func (c *Client) Pools() nusav1.PoolsClient { return nusav1.NewPoolsClient(c.conn) }

// Services says where the services of jobs are.
func (c *Client) Services() nusav1.ServicesClient { return nusav1.NewServicesClient(c.conn) }

// Workflows begins and steers runs of workflows.
func (c *Client) Workflows() nusav1.WorkflowsClient { return nusav1.NewWorkflowsClient(c.conn) }

// Schedules begins runs of jobs with a schedule, and of jobs that are dispatched.
func (c *Client) Schedules() nusav1.SchedulesClient { return nusav1.NewSchedulesClient(c.conn) }

// Semaphores limits how many steps of workflows run at once.
func (c *Client) Semaphores() nusav1.SemaphoresClient { return nusav1.NewSemaphoresClient(c.conn) }

// DeadLetters has what is left of instances of batch jobs that failed for good.
func (c *Client) DeadLetters() nusav1.DeadLettersClient { return nusav1.NewDeadLettersClient(c.conn) }

// Tasks has the history of allocations.
func (c *Client) Tasks() nusav1.TasksClient { return nusav1.NewTasksClient(c.conn) }

// Spares prepares spare hosts for an upgrade, and holds them.
func (c *Client) Spares() nusav1.SparesClient { return nusav1.NewSparesClient(c.conn) }

// Webhooks sends the events of the federation to HTTP endpoints.
func (c *Client) Webhooks() nusav1.WebhooksClient { return nusav1.NewWebhooksClient(c.conn) }

// Buses sends the events of the federation to message brokers.
func (c *Client) Buses() nusav1.BusesClient { return nusav1.NewBusesClient(c.conn) }

// Rollouts shows the versions of jobs of the federation, and steers rollouts.
func (c *Client) Rollouts() nusav1.RolloutsClient { return nusav1.NewRolloutsClient(c.conn) }

// Intakes takes jobs from message brokers.
func (c *Client) Intakes() nusav1.IntakesClient { return nusav1.NewIntakesClient(c.conn) }

// Tokens makes, lists and revokes the tokens with which members join.
func (c *Client) Tokens() nusav1.TokensClient { return nusav1.NewTokensClient(c.conn) }

// Members bans and removes members, and sets how regions let agents join.
func (c *Client) Members() nusav1.MembersClient { return nusav1.NewMembersClient(c.conn) }

// Keys rotates authorities and keys.
func (c *Client) Keys() nusav1.KeysClient { return nusav1.NewKeysClient(c.conn) }

// Monitor follows the logs of servers and agents.
func (c *Client) Monitor() nusav1.MonitorClient { return nusav1.NewMonitorClient(c.conn) }

// Repairs compares a region with the federation.
func (c *Client) Repairs() nusav1.RepairsClient { return nusav1.NewRepairsClient(c.conn) }
