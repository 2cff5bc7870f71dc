package task

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func showCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "show UUID", Aliases: []string{"status"}, Short: "Show every state of one task with its time, and the instance's other attempts",
		Args: cli.Positional("UUID"), Example: "  nusa task show 3f9a01bc-77aa-4e61-9d42-0d0e0f010203\n  nusa task show 3f9a01bc",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			h, err := client(c).Get(ctx, &nusav1.GetTaskRequest{Id: args[0]})
			if err != nil {
				return err
			}
			c.WarnPartial(h.GetErrors())
			return c.Print(h, func(w *term.Screen) { write(w, h) })
		}),
	}
}

func write(w *term.Screen, h *nusav1.TaskHistory) {
	r := h.GetTask()
	fields := [][2]string{
		{"id", r.GetId()}, {"instance", fmt.Sprintf("%s, version %d, attempt %d", instance(r), r.GetJobVersion(), r.GetAttempt()+1)},
		{"state", stateText(r)}, {"why", term.Why(r.GetReason(), r.GetMessage())},
		{"node", term.OneLine(r.GetRegion() + "/" + r.GetNode())}, {"node id", r.GetNodeId()},
		{"labels", term.LabelText(r.GetLabels())}, {"ran", ran(w, r)},
	}
	term.WriteFields(w, slices.DeleteFunc(fields, func(f [2]string) bool { return f[1] == "" }))
	fmt.Fprintln(w)
	writeChanges(w, r)
	writeTasks(w, r)
	if len(h.GetAttempts()) > 0 {
		fmt.Fprintln(w, "\nother attempts of the instance:")
		writeTable(w, h.GetAttempts())
	}
	for _, g := range h.GetGaps() {
		w.Note("note: ", gapText(g)+": changes may be missing")
	}
}

// writeChanges writes the states, each with its time and the time since the state before it.
func writeChanges(w *term.Screen, r *nusav1.TaskRecord) {
	t := term.NewTable("TIME", ">AFTER", "STATE", "#WHY")
	var last *timestamppb.Timestamp
	for i, c := range r.GetChanges() {
		after := ""
		if last != nil {
			after = "+" + c.GetTime().AsTime().Sub(last.AsTime()).Round(time.Millisecond).String()
		}
		last = c.GetTime()
		if n := r.GetChangesDropped(); n > 0 && i == len(r.GetChanges())/2 {
			t.Row("…", "", term.Plural(n, "change")+" not stored", "")
		}
		t.Row(clock(c.GetTime()), after, changeText(w, c), term.Why(c.GetReason(), c.GetMessage()))
	}
	t.DropEmpty("WHY")
	t.Write(w)
}

func changeText(w *term.Screen, c *nusav1.TaskChange) string {
	switch {
	case c.GetState() == nusav1.AllocState_ALLOC_STATE_UNSPECIFIED:
		return "unknown"
	case c.GetDeclined():
		return w.State("failed") + " (declined)"
	case c.GetRestarts() > 0 && c.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING:
		return fmt.Sprintf("%s, restart %d", w.State("running"), c.GetRestarts())
	}
	return w.State(term.Word(c.GetState()))
}

func writeTasks(w *term.Screen, r *nusav1.TaskRecord) {
	if len(r.GetTasks()) == 0 {
		return
	}
	t := term.NewTable("TASK", "STATE", ">EXIT CODE", ">SIGNAL", ">RESTARTS", "#MESSAGE")
	for _, name := range slices.Sorted(maps.Keys(r.GetTasks())) {
		x := r.GetTasks()[name]
		exit, signal := "", ""
		if x.GetState() >= nusav1.AllocState_ALLOC_STATE_COMPLETE && x.GetExitCode() >= 0 { // -1: it did not end by itself, or never ran
			exit = fmt.Sprint(x.GetExitCode())
		}
		if x.GetSignal() != 0 {
			signal = fmt.Sprint(x.GetSignal())
		}
		t.Row(name, w.State(term.Word(x.GetState())), exit, signal, term.Count(x.GetRestarts()), term.Why(x.GetReason(), x.GetMessage()))
	}
	t.DropEmpty("EXIT CODE", "SIGNAL", "MESSAGE")
	fmt.Fprintln(w)
	t.Write(w)
}
