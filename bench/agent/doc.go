// Package agent measures one real agent with real processes: `nusa bench agent`.
//
//	agent.go           options, result, and the life of the measured agent
//	agent_figures.go   the figures of idle times and of a batch
//	agent_growth.go    what grows with the number of tasks
//	agent_master.go    the fake master that gives orders and receives reports
package agent
