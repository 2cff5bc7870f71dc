package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/nusa-scheduler/nusa/agent"
	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/config"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/regional/tasks"
	"github.com/nusa-scheduler/nusa/security/identity"
)

const rolesGroup = "roles"

// maxServers bounds the servers of a region.
const maxServers = 9

func globalCommand() *cobra.Command {
	var r role
	var cfg global.Config
	var secure secureFlags
	var quotaMiB, jobsMiB, namespaceMiB, eventMiB int64
	cmd := &cobra.Command{
		Use:     "global",
		Short:   "Run a global server: API, placement of jobs in regions, embedded etcd",
		GroupID: rolesGroup,
		Example: `  # one server
  nusa global --name g1 --bind 10.0.0.1 --data-dir /var/nusa
  # one of three with an etcd member each: the same flags on every machine,
  # but --name and --bind
  nusa global --name g2 --bind 10.0.0.2 --data-dir /var/nusa \
    --ca-cert ca/root.pem --ca-key ca/root-key.pem \
    --etcd-initial-cluster g1=10.0.0.1:7603,g2=10.0.0.2:7603,g3=10.0.0.3:7603
  # one of several over an etcd of your own
  nusa global --name g2 --bind 10.0.0.2 --data-dir /var/nusa \
    --etcd-endpoints 10.0.0.7:2379,10.0.0.8:2379,10.0.0.9:2379 \
    --etcd-ca-file ca.pem --etcd-user nusa --etcd-password-file etcd.password`,
	}
	r.addFlags(cmd, "data-dir")
	f := cmd.Flags()
	secure.add(cmd)
	f.StringVar(&cfg.Name, "name", hostname(), "name of this server, unique among the global servers")
	f.StringVar(&cfg.GRPCAddr, "grpc-addr", "127.0.0.1:7600", "address of the API and of the regions' streams")
	f.StringVar(&cfg.APIAddr, "api-addr", "", "address of the API for operators only, who then cannot use --grpc-addr (default: none)")
	f.StringVar(&cfg.FederationAddr, "federation-addr", "", "address for regional servers only, which then cannot use --grpc-addr (default: none)")
	f.StringVar(&cfg.HTTPAddr, "http-addr", "127.0.0.1:7601", "address of the HTTP API, /livez, /readyz and /metrics; - turns it off")
	httpOrigins(f, &cfg.HTTPOrigins)
	f.StringVar(&cfg.Advertise, "advertise", "", "gRPC address by which the other global servers reach this one (default: --grpc-addr)")
	storeFlags(f, &cfg)
	f.Int64Var(&quotaMiB, "store-quota", store.DefaultQuota>>20, "MiB that the embedded etcd's database may use; from 90 % on no new job is accepted")
	f.Int64Var(&jobsMiB, "jobs-max", global.DefaultJobsMax>>20, "MiB that the stored records of all jobs may take; a small job that has not ended takes 3 to 4 kB of memory")
	f.Int64Var(&namespaceMiB, "namespace-max", global.DefaultNamespaceMax>>20, "MiB that the stored records of the jobs of one namespace may take")
	f.DurationVar(&cfg.EndedKept, "ended-kept", global.DefaultEndedKept, "time for which a job that has ended stays in memory, before it moves to the history")
	f.IntVar(&cfg.EndedMost, "ended-most", global.DefaultEndedMost, "at most this many jobs that have ended stay in memory")
	f.DurationVar(&cfg.HistoryAge, "history-age", global.DefaultHistoryAge, "time after which a job in the history is forgotten")
	f.IntVar(&cfg.HistoryMost, "history-most", global.DefaultHistoryMost, "at most this many jobs stay in the history; the oldest are forgotten first")
	auditFlags(f, &cfg.AuditRetention, &cfg.AuditSink)
	readFiles := eventFlags(f, &cfg.EventRetention, &eventMiB, &cfg.Webhooks)
	bindLimits(f, &cfg.Limits)
	f.DurationVar(&cfg.Lease, "lease", 0, "lease of regions, at least 3s (default 15s)")
	f.DurationVar(&cfg.ElectionTTL, "election-ttl", 0, "time after which another server replaces an active server that has died, at most --lease (default 5s)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for flag, mib := range map[string]int64{"store-quota": quotaMiB, "jobs-max": jobsMiB, "namespace-max": namespaceMiB, "event-size": eventMiB} {
			if mib < 1 || mib > 1<<20 {
				return fmt.Errorf("--%s: %d is not 1..%d (MiB)", flag, mib, 1<<20)
			}
		}
		if err := readFiles(); err != nil {
			return err
		}
		cfg.EventBytes = eventMiB << 20
		cfg.Etcd.Quota, cfg.JobsMax, cfg.NamespaceMax = quotaMiB<<20, jobsMiB<<20, namespaceMiB<<20
		cfg.DataDir, cfg.Logger, cfg.Version = r.dataDir, r.logger, serve.Version
		var err error
		cfg.Secure, err = secure.config(&r, cmd.Flags())
		if err != nil {
			return err
		}
		cfg.Socket = r.socketPath()
		var keep func(context.Context) error
		cfg.Identity, keep, err = r.given(cmd.Context(), identity.ID{Kind: identity.Global, Name: cfg.Name})
		if err != nil {
			return err
		}
		cfg.Ready = func(a global.Addresses) { r.logger.Info("ready", "grpc", a.GRPC, "http", a.HTTP) }
		warnLoopback(r.logger, cmd.ErrOrStderr(), loopbackWarning(cmd.Flags()))
		defer warnExposed(r.logger, cmd.Flags())()
		defer serve.PaceCollector(serve.HeapBudget)()
		return explainBind(cmd.Flags(), with(cmd.Context(), keep, func(ctx context.Context) error { return runGlobal(ctx, cfg) }))
	}
	return cmd
}

// memberLogBytes is the size of each file of the log of the embedded etcd. The member reads its latest one or two files
// twice when it starts: files of 64 MB, which are etcd's default, take 0.5 s of processor time.
const memberLogBytes = 8 << 20

func runGlobal(ctx context.Context, cfg global.Config) error {
	wal.SegmentSizeBytes = memberLogBytes
	return global.Run(ctx, cfg)
}

// storeFlags adds the flags for the store of a global server, and for how long it has reservations that
// have ended, for dead letters, and for the programs that make spare hosts.
func storeFlags(f *pflag.FlagSet, cfg *global.Config) {
	etcd := &cfg.Etcd
	letterFlags(f, &cfg.DeadLetterRetention, &cfg.DeadLetterAlarm)
	f.StringToStringVar(&cfg.SpareCommands, "spare-command", nil, "a program that a provisioner of spares may run here, NAME=PATH; repeat for more")
	f.DurationVar(&cfg.ReservationRetention, "reservation-retention", 24*time.Hour, "time for which a reservation that has ended can still be read")
	f.StringSliceVar(&etcd.Endpoints, "etcd-endpoints", nil, "use this etcd (or another global server's) instead of an embedded member")
	f.StringVar(&etcd.ClientAddr, "etcd-client-addr", "", "address of the embedded etcd for other global servers (default: none)")
	f.StringVar(&etcd.Outside.CAFile, "etcd-ca-file", "", "certificates of the authorities of --etcd-endpoints, PEM")
	f.StringVar(&etcd.Outside.CertFile, "etcd-cert-file", "", "client certificate for --etcd-endpoints, PEM")
	f.StringVar(&etcd.Outside.KeyFile, "etcd-key-file", "", "key of the client certificate, PEM, readable by its owner alone")
	f.StringVar(&etcd.Outside.User, "etcd-user", "", "user of --etcd-endpoints")
	f.StringVar(&etcd.Outside.PasswordFile, "etcd-password-file", "", "file with the password of the user, readable by its owner alone")
	f.StringVar(&etcd.PeerAddr, "etcd-peer-addr", "", "peer address of the embedded etcd member, if there are several (default: that of --etcd-initial-cluster)")
	f.StringSliceVar(&etcd.InitialCluster, "etcd-initial-cluster", nil, "name=host:port of every embedded member's peer address, for three members")
}

func regionalCommand() *cobra.Command {
	var r role
	cfg := regional.Config{Region: &nusav1.RegionDefinition{}}
	var location string
	var labels, probeKeys []string
	var historyMiB, taskMiB int64
	var fast bool
	var certTTL time.Duration
	cmd := &cobra.Command{
		Use:     "regional",
		Short:   "Run a regional server: Raft, scheduling on nodes, latency probes",
		GroupID: rolesGroup,
		Example: `  nusa regional --region jakarta --name jkt-1 --bind 10.0.0.2 \
    --location -6.2,106.8 --label jurisdiction=id --join-token-file token \
    --data-dir /var/lib/nusa/regional --bootstrap-expect 3 \
    --join 10.0.0.1:7612 --global 198.51.100.10:7600`,
	}
	r.addFlags(cmd, "region", "data-dir")
	r.addJoinFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&cfg.Region.Name, "region", "", "name of the region (required)")
	f.StringVar(&location, "location", "", "latitude,longitude of the region in degrees")
	f.StringSliceVar(&labels, "label", nil, "key=value label of the region; repeat or separate by commas")
	f.StringVar(&cfg.Region.Description, "description", "", "free text about the region")
	f.StringVar(&cfg.Name, "name", hostname(), "name of this server, unique in its region")
	regionalAddresses(f, &cfg)
	f.StringSliceVar(&cfg.Join, "join", nil, "gossip addresses of any servers of the region")
	f.IntVar(&cfg.BootstrapExpect, "bootstrap-expect", 1, "number of servers that must know each other before a new region forms")
	f.StringSliceVar(&cfg.Global, "global", nil, "gRPC addresses of global servers; none: the region is an island")
	bindLimits(f, &cfg.Limits)
	f.DurationVar(&cfg.NodeLease, "node-lease", 0, "time without contact after which a node is lost, at least 3s (default 15s)")
	f.IntVar(&cfg.ProbeRate, "probe-rate", 0, "at most this many latency probes a second (default 100)")
	historyFlags(f, &cfg, &historyMiB, &taskMiB)
	keyFlags(f, &probeKeys, &cfg.GossipKeyFile)
	f.StringVar((*string)(&cfg.RaftLog), "raft-log", "wal", "store of the Raft log: wal (checksums, twice the appends a second) or boltdb; a change converts the data")
	auditFlags(f, &cfg.AuditRetention, &cfg.AuditSink)
	f.DurationVar(&certTTL, "cert-ttl", 0, "life of the certificates of agents that this server issues (default 24h)")
	f.BoolVar(&fast, "fast-raft", false, "detect a dead master in half a second; for servers on one machine or rack")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cfg.BootstrapExpect < 1 || cfg.BootstrapExpect > maxServers {
			return fmt.Errorf("--bootstrap-expect: %d is not 1..%d", cfg.BootstrapExpect, maxServers)
		}
		var err error
		cfg.Region.Labels, err = keyValues("--label", labels)
		if err != nil {
			return err
		}
		cfg.Region.Location, err = parseLocation(location)
		if err != nil {
			return err
		}
		for _, key := range probeKeys {
			cfg.ProbeKeys = append(cfg.ProbeKeys, []byte(key))
		}
		cfg.HistoryBytes, err = historyBytes(historyMiB)
		if err != nil {
			return err
		}
		cfg.TaskHistory.Bytes = taskMiB << 20
		if fast {
			cfg.Raft = regional.FastRaft()
		}
		cfg.DataDir, cfg.Logger, cfg.Version, cfg.Socket = r.dataDir, r.logger, serve.Version, r.socketPath()
		keep, err := r.joinRegional(cmd, &cfg, certTTL)
		if err != nil {
			return err
		}
		cfg.Ready = func(a regional.Addresses) { r.logger.Info("ready", "grpc", a.GRPC, "http", a.HTTP) }
		warnLoopback(r.logger, cmd.ErrOrStderr(), loopbackWarning(cmd.Flags()))
		defer warnExposed(r.logger, cmd.Flags())()
		defer serve.PaceCollector(serve.HeapBudget)()
		return explainBind(cmd.Flags(), with(cmd.Context(), keep, func(ctx context.Context) error { return regional.Run(ctx, cfg) }))
	}
	return cmd
}

// historyFlags adds the flags for the history of measurements and of tasks.
func historyFlags(f *pflag.FlagSet, cfg *regional.Config, mib, taskMiB *int64) {
	f.IntVar(&cfg.HistorySeries, "history-series", 0, "at most this many series of measured values are retained: edges, nodes, pools (default 20000)")
	f.Int64Var(mib, "history-mib", 3<<10, "MiB that the retained measured values may take, 4 or more; 0 = retain none")
	f.Int64Var(&cfg.TaskHistory.Count, "task-history", tasks.DefaultCount, "at most this many tasks are in the history: those that ended first are removed")
	f.DurationVar(&cfg.TaskHistory.Age, "task-history-age", tasks.DefaultAge, "time for which a task that has ended stays in the history")
	f.Int64Var(taskMiB, "task-history-mib", tasks.DefaultBytes>>20, "MiB that the history of tasks may take, 16 or more")
}

// keyFlags adds the flags for the keys of latency probes and gossip.
func keyFlags(f *pflag.FlagSet, probes *[]string, gossip *string) {
	f.StringSliceVar(probes, "probe-key", nil, "key of latency probes, equal in all regions, 16 bytes or more; repeat to accept more (default: none, no proof)")
	config.MarkSecret(f, "probe-key")
	f.StringVar(gossip, "gossip-key-file", "", "file of the keys of gossip, one a line in base64, equal in the region (default: no encryption)")
}

func agentCommand() *cobra.Command {
	var r role
	var cfg agent.Config
	var labels, share = []string(nil), 0
	var reserveCPU, reserveMiB, keptMiB, artifactsMiB int64
	cmd := &cobra.Command{
		Use:     "agent",
		Short:   "Run an agent, which runs the work of one node",
		GroupID: rolesGroup,
		Example: `  nusa agent --region jakarta --bind 10.0.0.21 \
    --servers 10.0.0.1:7610,10.0.0.2:7610 --label disk=ssd \
    --data-dir /var/lib/nusa/agent --join-token-file token`,
	}
	r.addFlags(cmd, "region", "servers", "data-dir")
	r.addAgentJoinFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&cfg.Region, "region", "", "name of the region (required)")
	f.StringVar(&cfg.Name, "name", hostname(), "name of this node")
	f.StringVar(&cfg.Description, "description", "", "free text about the node")
	f.StringSliceVar(&cfg.Servers, "servers", nil, "gRPC addresses of regional servers; one reachable server is enough (required)")
	agentAddresses(f, &cfg)
	f.StringVar(&cfg.Pool, "pool", "default", "node pool")
	f.StringSliceVar(&labels, "label", nil, "key=value label of the node; repeat or separate by commas")
	f.Int64Var(&reserveCPU, "reserve-cpu", 0, "thousandths of a core that the scheduler does not use")
	f.Int64Var(&reserveMiB, "reserve-memory", 0, "MiB of memory that the scheduler does not use")
	f.Int64Var(&keptMiB, "kept-logs", 1024, "MiB that the output and working folders of ended allocations may take; the oldest are deleted first")
	f.IntVar(&cfg.MaxRetainedFolders, "kept-folders", 500, "at most this many working folders of ended allocations stay")
	f.IntVar(&cfg.InstanceQuota, "instance-quota", 0, "at most this many allocations at a time; 0 = no limit")
	f.IntVar(&cfg.PortMin, "port-min", 20000, "first dynamic port")
	f.IntVar(&cfg.PortMax, "port-max", 32000, "last dynamic port")
	f.BoolVar(&cfg.ControlPlane, "control-plane", false, "this node also runs servers and takes no work")
	f.StringVar(&cfg.SharedMachine, "shared-machine", "", "name of the machine that several agents share")
	f.IntVar(&share, "share", 1, "number of agents that share the machine; this agent offers an equal share of the capacity")
	f.StringSliceVar(&cfg.VolumesAllow, "volumes-allow", nil, "folders of this machine below which jobs may have volumes (default: none)")
	f.StringSliceVar(&cfg.ArtifactsAllow, "artifacts-allow", nil, "allowed sources of artifacts besides public addresses: prefixes such as 10.0.0.0/8, and folders for file://")
	f.Int64Var(&artifactsMiB, "artifacts-max", 1024, "MiB that a task's artifacts may take, fetched and unpacked")
	f.StringVar(&cfg.SecretsDir, "secrets-dir", "", "folder with the secrets that jobs may have, as NAMESPACE/NAME, readable by its owner alone (default: none)")
	f.StringVar(&cfg.ProcessUser, "process-user", "", "USER or USER:GROUP of processes, without supplementary groups (default: the agent's; jobs may name any user)")
	f.StringSliceVar(&cfg.ProcessUsers, "process-users", nil, "further users, as in --process-user, that jobs may name instead (default: none)")
	engines(f, &cfg.DockerHost, &cfg.Incus)
	f.StringVar(&cfg.DockerAuth, "docker-auth", "", "file with passwords of registries, in the form of Docker's config.json, readable by its owner alone (default: none)")
	f.BoolVar(&cfg.DockerPrivileged, "docker-allow-privileged", false, "let jobs run privileged containers, which are root on this machine")
	incusFlags(f, &cfg)
	f.StringToStringVar(&cfg.Plugins, "plugin", nil, "a further driver, NAME=PATH of its executable; repeat for more (see examples/plugin)")
	f.BoolVar(&cfg.LeaveOnShutdown, "leave-on-shutdown", false, "stop every task and leave the region when this agent is stopped")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		cfg.Labels, err = keyValues("--label", labels)
		if err != nil {
			return err
		}
		if share < 1 || share > 1000 {
			return fmt.Errorf("--share: %d is not 1..1000", share)
		}
		for flag, mib := range map[string]int64{"kept-logs": keptMiB, "artifacts-max": artifactsMiB} {
			if mib < 1 || mib > 1<<30 {
				return fmt.Errorf("--%s: %d is not 1..%d", flag, mib, 1<<30)
			}
		}
		cfg.MaxRetainedBytes, cfg.ArtifactsMax = keptMiB<<20, artifactsMiB<<20
		cfg.Address = cmp.Or(cfg.Address, boundAddress(cmd.Flags()))
		cfg.Share = 1 / float64(share)
		cfg.ReleaseMemory = true
		cfg.Reserve = driver.Resources{CPUMilli: reserveCPU, MemoryBytes: reserveMiB << 20}
		cfg.DataDir, cfg.Logger, cfg.Version = r.dataDir, r.logger, serve.Version
		cfg.Ready = func(a agent.Addresses) { r.logger.Info("ready", "node", a.NodeID, "http", a.HTTP, "dns", a.DNS) }
		keep, err := r.joinAgent(cmd, &cfg)
		if err != nil {
			return err
		}
		defer warnExposed(r.logger, cmd.Flags())()
		return explainBind(cmd.Flags(), with(cmd.Context(), keep, func(ctx context.Context) error { return agent.Run(ctx, cfg) }))
	}
	return cmd
}

// httpOrigins adds the flag for the pages of other servers that may call the HTTP API.
func httpOrigins(f *pflag.FlagSet, origins *[]string) {
	f.StringSliceVar(origins, "http-cors-origin", nil, "origin of a page of another server that may call the HTTP API, such as https://ops.example.com (default: none)")
}

// agentAddresses adds the flags for the addresses of an agent.
func agentAddresses(f *pflag.FlagSet, cfg *agent.Config) {
	f.StringVar(&cfg.HTTPAddr, "http-addr", "127.0.0.1:7620", "address of /livez, /readyz and /metrics; - turns it off")
	f.StringVar(&cfg.DNSAddr, "dns-addr", "", "address that answers DNS questions about services, such as 127.0.0.1:7653, UDP and TCP (default: none)")
	f.StringVar(&cfg.Address, "service-address", "", "IP address of this machine that services name (default: that of --bind, or the first that is not loopback)")
}

// regionalAddresses adds the flags for the addresses of a regional server.
func regionalAddresses(f *pflag.FlagSet, cfg *regional.Config) {
	f.StringVar(&cfg.GRPCAddr, "grpc-addr", "127.0.0.1:7610", "address of the API and of the agents' streams")
	f.StringVar(&cfg.APIAddr, "api-addr", "", "address of the API for operators only, who then cannot use --grpc-addr (default: none)")
	f.StringVar(&cfg.AgentAddr, "agent-addr", "", "address for the region's agents only, which then cannot use --grpc-addr (default: none)")
	f.StringVar(&cfg.RaftAddr, "raft-addr", "127.0.0.1:7611", "address of Raft")
	f.StringVar(&cfg.GossipAddr, "gossip-addr", "127.0.0.1:7612", "address of gossip, UDP and TCP")
	f.StringVar(&cfg.ProbeAddr, "probe-addr", "127.0.0.1:7613", "address that answers latency probes, UDP and TCP")
	f.StringVar(&cfg.HTTPAddr, "http-addr", "127.0.0.1:7614", "address of the HTTP API, /livez, /readyz and /metrics; - turns it off")
	httpOrigins(f, &cfg.HTTPOrigins)
	f.StringVar(&cfg.Advertise, "advertise", "", "host at which other machines reach this server (default: the host of --grpc-addr)")
}

// engines adds the flags for the addresses of an agent's engines.
func engines(f *pflag.FlagSet, docker, incus *string) {
	f.StringVar(docker, "docker-host", "", "address of the Docker engine, such as unix:///run/docker.sock (default: the usual socket if it exists); off = none")
	f.StringVar(incus, "incus", "", "Incus daemon: the path of a socket, or https://HOST:PORT (default: this host's socket if it exists); off = none")
}

// incusFlags adds the flags for the driver incus of an agent, and for its accelerators.
func incusFlags(f *pflag.FlagSet, cfg *agent.Config) {
	f.StringVar(&cfg.GPURoot, "gpu-root", "", "folder that has /proc/driver/nvidia and usr/bin/nvidia-smi of the machine, for an agent in a container (default: /)")
	f.BoolVar(&cfg.IncusPrivileged, "incus-allow-privileged", false, "let jobs have any key and device of Incus, such as security.privileged and disks of this machine: some give root on it")
	f.StringSliceVar(&cfg.IncusProfiles, "incus-profiles", nil, "profiles of the Incus daemon that jobs may name besides the profile default; not checked (default: none)")
	f.StringVar(&cfg.IncusCert, "incus-cert", "", "client certificate for https, PEM")
	f.StringVar(&cfg.IncusKey, "incus-key", "", "key of the client certificate, PEM")
	f.StringVar(&cfg.IncusCA, "incus-ca", "", "certificate of the daemon or its authority, PEM")
}

// historyBytes returns the size of the metrics history for --history-mib. It is negative for
// no history.
func historyBytes(mib int64) (int64, error) {
	switch {
	case mib == 0:
		return -1, nil
	case mib < 4 || mib > 1<<30:
		return 0, fmt.Errorf("--history-mib: %d is neither 0 nor 4..%d", mib, 1<<30)
	}
	return mib << 20, nil
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

func keyValues(flag string, pairs []string) (map[string]string, error) {
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%s: %q is not key=value", flag, p)
		}
		out[k] = v
	}
	return out, nil
}

func parseLocation(s string) (*nusav1.Location, error) {
	if s == "" {
		return nil, nil
	}
	lat, lon, ok := strings.Cut(s, ",")
	if !ok {
		return nil, fmt.Errorf("--location: %q is not latitude,longitude", s)
	}
	la, err1 := strconv.ParseFloat(strings.TrimSpace(lat), 64)
	lo, err2 := strconv.ParseFloat(strings.TrimSpace(lon), 64)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("--location: %q is not latitude,longitude in degrees", s)
	}
	return &nusav1.Location{Latitude: la, Longitude: lo}, nil
}
