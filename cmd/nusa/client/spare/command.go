package spare

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// pollPause is the time between two questions whether a spare is ready.
const pollPause = 500 * time.Millisecond

// Command returns the command `nusa spare`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("spare", "Prepare spare hosts for an upgrade, and hold them",
		prepareCommand(s), listCommand(s), showCommand(s), releaseCommand(s), cancelCommand(s),
		cli.Noun("provisioner", "Provisioners: who makes hosts that are missing", provisionerSetCommand(s), provisionerListCommand(s), provisionerRemoveCommand(s)))
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

func client(c *cli.Session) nusav1.SparesClient { return nusav1.NewSparesClient(c.Conn) }

// word returns a state as people write it, for example "joining".
func word(s nusav1.SpareState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "SPARE_STATE_"))
}

func prepareCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.PrepareSpareRequest{}
	var cpu, memory, disk, secretFile string
	var deadline, hold time.Duration
	var detach bool
	c := &cobra.Command{
		Use: "prepare", Short: "Prepare spare hosts, and hold them", Args: cli.Positional(),
		Long: `Reserves hosts of a pool. If there are too few, the provisioner is asked for more, and
their agents must join the pool. When all hosts are ready, the callback is called. The
hosts stay reserved until nusa spare release.

Without --cpu and --memory each host is reserved whole. The command waits until the
hosts are ready. Exit code 2: not within --timeout. Exit code 3: it has failed.`,
		Example: `  nusa spare prepare --pool bare --count 2 --provisioner lab --timeout 30m
  nusa spare prepare --pool bare --cpu 8 --memory 32GiB --detach \
    --callback-url https://up.example.com/ready --callback-secret-file secret`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if err := readRoom(req, cpu, memory, disk); err != nil {
				return err
			}
			if secretFile != "" {
				text, err := cli.ReadSecret(c.Cmd, secretFile)
				if err != nil {
					return fmt.Errorf("--callback-secret-file: %w", err)
				}
				req.CallbackSecret = strings.TrimSpace(text)
			}
			req.Namespace, req.Deadline, req.Hold = c.Namespace, durationpb.New(deadline), durationpb.New(hold)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			x, err := client(c).Prepare(ctx, req)
			if err != nil {
				return err
			}
			if !detach {
				x = awaited(ctx, c, x)
			}
			if err := c.Print(x, func(w *term.Screen) { write(w, x) }); err != nil {
				return err
			}
			switch {
			case x.GetState() > nusav1.SpareState_SPARE_STATE_READY:
				return &cli.ExitError{Code: cli.ExitFailed}
			case !detach && x.GetState() < nusav1.SpareState_SPARE_STATE_READY:
				return &cli.ExitError{Code: cli.ExitWaiting}
			}
			return nil
		}),
	}
	f := c.Flags()
	f.StringVar(&req.Pool, "pool", "", "node pool of the hosts (default \"default\")")
	f.Int32Var(&req.Count, "count", 1, "number of hosts, at most 64")
	f.StringVar(&cpu, "cpu", "", "cores on each host, such as 4 or 500m (default: the whole host)")
	f.StringVar(&memory, "memory", "", "memory on each host, such as 8GiB (default: the whole host)")
	f.StringVar(&disk, "disk", "", "disk on each host, such as 100GiB")
	f.StringArrayVar(&req.Constraints, "constraint", nil, "condition on the node, such as 'node.labels[\"disk\"] == \"ssd\"'; repeat for more")
	f.StringSliceVar(&req.Regions, "region", nil, "only in these regions")
	f.DurationVar(&deadline, "deadline", 30*time.Minute, "time within which the hosts must be ready")
	f.DurationVar(&hold, "hold", 24*time.Hour, "time for which ready hosts are held if nobody releases them")
	f.StringVar(&req.Provisioner, "provisioner", "", "who makes hosts that are missing (default: wait for room)")
	f.StringVar(&req.CallbackUrl, "callback-url", "", "where the upgrade controller learns that the hosts are ready, https://…")
	f.StringVar(&secretFile, "callback-secret-file", "", "file with the secret that signs the callback, whsec_…; - for standard input")
	f.StringToStringVar(&req.Labels, "label", nil, "key=value label; repeat or separate by commas")
	f.StringVar(&req.IdempotencyKey, "key", "", "idempotency key: a retry with the key gets the same spare")
	f.BoolVarP(&detach, "detach", "d", false, "do not wait until the hosts are ready")
	return c
}

// readRoom reads the room on each host. Without any the whole host is meant.
func readRoom(req *nusav1.PrepareSpareRequest, cpu, memory, disk string) (err error) {
	if cpu != "" {
		req.CpuMilli, err = job.ParseCPU(cpu)
		if err != nil {
			return fmt.Errorf("--cpu: %w", err)
		}
	}
	for _, x := range []struct {
		flag, text string
		to         *int64
	}{{"--memory", memory, &req.MemoryBytes}, {"--disk", disk, &req.DiskBytes}} {
		if x.text == "" {
			continue
		}
		*x.to, err = job.ParseBytes(x.text)
		if err != nil {
			return fmt.Errorf("%s: %w", x.flag, err)
		}
	}
	if (cpu == "") != (memory == "") {
		return errors.New("--cpu and --memory go together; without both each host is reserved whole")
	}
	return nil
}

// awaited returns a spare once it is ready or ends, or as it was last seen when ctx ends.
func awaited(ctx context.Context, c *cli.Session, x *nusav1.Spare) *nusav1.Spare {
	for x.GetState() < nusav1.SpareState_SPARE_STATE_READY {
		pause := time.NewTimer(pollPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return x
		}
		next, err := client(c).Get(ctx, &nusav1.GetSpareRequest{Id: x.GetId()})
		if err != nil {
			return x
		}
		x = next
	}
	return x
}

// held returns how many hosts are held.
func held(x *nusav1.Spare) string {
	n := 0
	for _, h := range x.GetHosts() {
		if h.GetState() == "held" {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(x.GetHosts()))
}

func write(w *term.Screen, x *nusav1.Spare) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, term.OneLine(value))
		}
	}
	req := x.GetRequest()
	line("id", x.GetId())
	line("state", word(x.GetState()))
	line("message", x.GetMessage())
	asks := term.Plural(req.GetCount(), "host") + " of pool " + req.GetPool()
	if req.GetCpuMilli() > 0 {
		asks += ", each with " + term.Cores(req.GetCpuMilli()) + " cpu, " + term.Size(req.GetMemoryBytes())
	}
	line("asks for", asks)
	line("namespace", req.GetNamespace())
	line("provisioner", req.GetProvisioner())
	line("callback", req.GetCallbackUrl())
	line("created", w.Since(x.GetCreated()))
	if x.GetPrepared() != nil {
		line("prepared", w.Since(x.GetPrepared()))
	}
	if x.GetFailures() > 0 {
		line("failures", fmt.Sprint(x.GetFailures()))
	}
	fmt.Fprintln(w)
	t := term.NewTable("HOST", "STATE", "ADDRESS", "#RESERVATION")
	for _, h := range x.GetHosts() {
		name := ""
		if h.GetNode() != "" {
			name = h.GetRegion() + "/" + h.GetNode()
		}
		t.Row(term.OrDash(name), h.GetState(), term.OrDash(h.GetAddress()), term.OrDash(h.GetReservation()))
	}
	t.Write(w)
}

func listCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.ListSparesRequest{}
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List spares", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			req.States = cli.Enums(states, nusav1.SpareState_SPARE_STATE_UNSPECIFIED)
			out := &nusav1.ListSparesResponse{}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			req.Limit, req.Namespace = 1000, c.Namespace
			if err := cli.Pages(func(token string) (string, error) {
				req.PageToken = token
				page, err := client(c).List(ctx, req)
				out.Spares = append(out.Spares, page.GetSpares()...)
				return page.GetNextPageToken(), err
			}); err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) {
				if none := cli.NoneSuch(c.Program, "spares", "spare list", states, nil); len(out.GetSpares()) == 0 && none != "" {
					fmt.Fprintln(w, none)
					return
				}
				writeList(w, out.GetSpares())
			})
		}),
	}
	f := c.Flags()
	states = cli.EnumStateFlag(c, "spares", nusav1.SpareState_SPARE_STATE_UNSPECIFIED)
	f.StringVar(&req.Pool, "pool", "", "only of this node pool")
	return c
}

func writeList(w *term.Screen, all []*nusav1.Spare) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no spares; prepare one with: %s spare prepare --pool POOL --count 1\n", w.Program)
		return
	}
	t := term.NewTable("ID", "STATE", ">HELD", "POOL", "#MESSAGE")
	for _, x := range all {
		t.Row(x.GetId(), word(x.GetState()), held(x), x.GetRequest().GetPool(), term.OneLine(x.GetMessage()))
	}
	t.Write(w)
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"status"}, Short: "Show a spare and its hosts", Args: cli.Positional("ID"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			x, err := client(c).Get(ctx, &nusav1.GetSpareRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return c.Print(x, func(w *term.Screen) { write(w, x) })
		}),
	}
}

// act returns a command that ends a spare.
func act(s *cli.Settings, use, short string, call func(context.Context, nusav1.SparesClient, string) (*nusav1.Spare, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: cli.Positional("ID"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			x, err := call(ctx, client(c), args[0])
			if err != nil {
				return err
			}
			return c.Print(x, func(w *term.Screen) { fmt.Fprintf(w, "spare %s is %s\n", x.GetId(), word(x.GetState())) })
		}),
	}
}

func releaseCommand(s *cli.Settings) *cobra.Command {
	return act(s, "release", "Give the hosts back after the upgrade", func(ctx context.Context, c nusav1.SparesClient, id string) (*nusav1.Spare, error) {
		return c.Release(ctx, &nusav1.ReleaseSpareRequest{Id: id})
	})
}

func cancelCommand(s *cli.Settings) *cobra.Command {
	return act(s, "cancel", "End a spare in any state, and give its hosts back", func(ctx context.Context, c nusav1.SparesClient, id string) (*nusav1.Spare, error) {
		return c.Cancel(ctx, &nusav1.CancelSpareRequest{Id: id})
	})
}
