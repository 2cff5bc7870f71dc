// Package reservation has the commands `nusa reservation`: room on nodes for what another system creates.
//
//   - command.go: all commands
package reservation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// pollPause is the time between two questions whether a reservation has been decided.
const pollPause = 200 * time.Millisecond

// maxText bounds the text of a claim, in bytes.
const maxText = 16 << 10

// Command returns the command `nusa reservation`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("reservation", "Reserve room on nodes for what another system creates",
		createCommand(s), listCommand(s), showCommand(s), claimCommand(s), releaseCommand(s))
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

func client(c *cli.Session) nusav1.ReservationsClient {
	return nusav1.NewReservationsClient(c.Conn)
}

// word returns a state as people write it, for example "processing".
func word(s nusav1.ReservationState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "RESERVATION_STATE_"))
}

func createCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.CreateReservationRequest{}
	var cpu, memory, disk string
	var regions []string
	var ttl, wait time.Duration
	var detach bool
	c := &cobra.Command{
		Use: "create", Short: "Reserve room on a node", Args: cli.Positional(),
		Long: `Reserves room on a node, and waits until a node has it or until the reservation
has failed. Nothing runs there: another system creates something in the room, and
says so with nusa reservation claim. Exit code 2: not decided within --timeout.
Exit code 3: there is no room.`,
		Example: `  nusa reservation create --cpu 4 --memory 8GiB --pool bare --dedicated
  nusa reservation create --cpu 500m --memory 1GiB --ttl 30m --wait 0s -o json`,
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			req.Namespace = c.Namespace
			var err error
			req.CpuMilli, err = job.ParseCPU(cpu)
			if err != nil {
				return fmt.Errorf("--cpu: %w", err)
			}
			req.MemoryBytes, err = job.ParseBytes(memory)
			if err != nil {
				return fmt.Errorf("--memory: %w", err)
			}
			req.DiskBytes, err = job.ParseBytes(disk)
			if err != nil {
				return fmt.Errorf("--disk: %w", err)
			}
			req.Ttl, req.Wait = durationpb.New(ttl), durationpb.New(wait)
			for _, name := range regions {
				if req.Regions == nil {
					req.Regions = &nusav1.RegionsSpec{}
				}
				req.Regions.Allow = append(req.Regions.Allow, &nusav1.RegionSelector{Name: name})
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := client(c).Create(ctx, req)
			if err != nil {
				return err
			}
			if !detach {
				// The server counts wait from later on, so the result may be later than wait.
				decision, end := context.WithTimeout(c.Ctx, wait+c.Timeout)
				defer end()
				r = decided(decision, c, r)
			}
			if err := c.Print(r, func(w *term.Screen) { write(w, r) }); err != nil {
				return err
			}
			switch {
			case r.GetState() == nusav1.ReservationState_RESERVATION_STATE_FAILED:
				return &cli.ExitError{Code: cli.ExitFailed}
			case !detach && r.GetState() == nusav1.ReservationState_RESERVATION_STATE_PROCESSING:
				return &cli.ExitError{Code: cli.ExitWaiting}
			}
			return nil
		}),
	}
	f := c.Flags()
	f.StringVar(&cpu, "cpu", "1", "cores, such as 4 or 500m")
	f.StringVar(&memory, "memory", "1GiB", "memory, such as 8GiB")
	f.StringVar(&disk, "disk", "0", "disk, such as 100GiB")
	f.StringVar(&req.Pool, "pool", "", "node pool (default \"default\")")
	f.BoolVar(&req.Dedicated, "dedicated", false, "share the node with no other job")
	f.StringArrayVar(&req.Constraints, "constraint", nil, "condition on the node, such as 'node.labels[\"disk\"] == \"ssd\"'; repeat for more")
	f.StringSliceVar(&regions, "region", nil, "only in these regions")
	f.StringToStringVar(&req.Labels, "label", nil, "key=value label; repeat or separate by commas")
	f.StringVar(&req.IdempotencyKey, "key", "", "idempotency key: a retry with the key gets the same reservation")
	f.DurationVar(&ttl, "ttl", 0, "time after which the reservation expires; 0 = never")
	f.DurationVar(&wait, "wait", 30*time.Second, "time to wait for room; 0 = fail at once without room")
	f.BoolVarP(&detach, "detach", "d", false, "do not wait for the result")
	return c
}

// decided returns a reservation once it is no longer processing, or as it was last seen when ctx ends.
func decided(ctx context.Context, c *cli.Session, r *nusav1.Reservation) *nusav1.Reservation {
	for r.GetState() == nusav1.ReservationState_RESERVATION_STATE_PROCESSING {
		pause := time.NewTimer(pollPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return r
		}
		next, err := client(c).Get(ctx, &nusav1.GetReservationRequest{Id: r.GetId()})
		if err != nil {
			return r
		}
		r = next
	}
	return r
}

// node returns where a reservation is, for example "jakarta/bm-1".
func node(r *nusav1.Reservation) string {
	if r.GetNode() == nil {
		return ""
	}
	return r.GetNode().GetRegion() + "/" + r.GetNode().GetName()
}

func write(w *term.Screen, r *nusav1.Reservation) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-11s %s\n", name, term.OneLine(value))
		}
	}
	req := r.GetRequest()
	line("id", r.GetId())
	line("state", word(r.GetState()))
	line("message", r.GetMessage())
	line("node", node(r))
	line("address", r.GetNode().GetAddress())
	asks := term.Cores(req.GetCpuMilli()) + " cpu, " + term.Size(req.GetMemoryBytes()) + " in pool " + req.GetPool()
	if req.GetDedicated() {
		asks += ", dedicated"
	}
	line("asks for", asks)
	line("namespace", req.GetNamespace())
	if d := req.GetTtl().AsDuration(); d > 0 {
		line("ttl", job.FormatDuration(d))
	}
	line("job", r.GetJob())
	line("created", w.Since(r.GetCreated()))
	if n := r.GetMoves(); n > 0 {
		line("moved", fmt.Sprintf("%s, last from %s/%s", term.Plural(n, "time"), r.GetMovedFrom().GetRegion(), r.GetMovedFrom().GetName()))
	}
	if c := r.GetClaim(); c != nil {
		line("claimed by", c.GetBy())
		line("claim", c.GetText())
	}
}

func listCommand(s *cli.Settings) *cobra.Command {
	req := &nusav1.ListReservationsRequest{}
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List reservations", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			req.States = cli.Enums(states, nusav1.ReservationState_RESERVATION_STATE_UNSPECIFIED)
			out := &nusav1.ListReservationsResponse{}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			req.Limit, req.Namespace = 1000, c.Namespace
			if err := cli.Pages(func(token string) (string, error) {
				req.PageToken = token
				page, err := client(c).List(ctx, req)
				out.Reservations = append(out.Reservations, page.GetReservations()...)
				return page.GetNextPageToken(), err
			}); err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) {
				if none := cli.NoneSuch(c.Program, "reservations", "reservation list", states, req.GetLabels()); len(out.GetReservations()) == 0 && none != "" {
					fmt.Fprintln(w, none)
					return
				}
				writeList(w, out.GetReservations())
			})
		}),
	}
	f := c.Flags()
	states = cli.EnumStateFlag(c, "reservations", nusav1.ReservationState_RESERVATION_STATE_UNSPECIFIED)
	f.StringVar(&req.Region, "region", "", "only in this region")
	f.StringVar(&req.Pool, "pool", "", "only of this node pool")
	f.StringVar(&req.ClaimedBy, "claimed-by", "", "only those that this name has claimed")
	cli.LabelFlag(c, &req.Labels, "reservations")
	return c
}

func writeList(w *term.Screen, all []*nusav1.Reservation) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no reservations; make one with: %s reservation create --cpu 4 --memory 8GiB\n", w.Program)
		return
	}
	t := term.NewTable("ID", "STATE", "REGION", "NODE", "CLAIMED BY", "#MESSAGE")
	for _, r := range all {
		n := r.GetNode()
		t.Row(r.GetId(), word(r.GetState()), term.OneLine(term.OrDash(n.GetRegion())), term.OneLine(term.OrDash(n.GetName())),
			term.OneLine(term.OrDash(r.GetClaim().GetBy())), term.OneLine(r.GetMessage()))
	}
	t.Narrow(w.Width, "REGION", "CLAIMED BY", "NODE")
	t.Write(w)
}

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"status"}, Short: "Show a reservation and its claim", Args: cli.Positional("ID"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := client(c).Get(ctx, &nusav1.GetReservationRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) { write(w, r) })
		}),
	}
}

func claimCommand(s *cli.Settings) *cobra.Command {
	var by, text string
	c := &cobra.Command{
		Use: "claim ID", Short: "Say what was created in the reserved room", Args: cli.Positional("ID"),
		Long: `Stores what was created in the reserved room. The claim stays with the reservation
when it moves to another node. Another name cannot claim it then.`,
		Example: `  nusa reservation claim ID --by virtflow --text '{"vm": "web-1"}'
  describe-vm web-1 | nusa reservation claim ID --by virtflow --text -`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if by == "" {
				return errors.New("--by NAME is required: who claims the reservation")
			}
			if text == "-" {
				in, err := io.ReadAll(io.LimitReader(c.Cmd.InOrStdin(), maxText+1))
				if err != nil {
					return fmt.Errorf("--text -: %w", err)
				}
				text = string(in)
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := client(c).Claim(ctx, &nusav1.ClaimReservationRequest{Id: args[0], By: by, Text: text})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) {
				fmt.Fprintf(w, "%s on %s is claimed by %s\n", r.GetId(), node(r), by)
			})
		}),
	}
	c.Flags().StringVar(&by, "by", "", "who claims it (required)")
	c.Flags().StringVar(&text, "text", "", "what was created, at most 16 KiB; - reads standard input")
	return c
}

func releaseCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "release ID", Aliases: []string{"rm"}, Short: "Give the room of a reservation back", Args: cli.Positional("ID"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := client(c).Release(ctx, &nusav1.ReleaseReservationRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return c.Print(r, func(w *term.Screen) { fmt.Fprintf(w, "reservation %s is %s\n", r.GetId(), word(r.GetState())) })
		}),
	}
}
