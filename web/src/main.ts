import { mount } from 'svelte'
import App from './App.svelte'
import './app.css'
import { session } from './lib/session.svelte'
import { theme } from './lib/theme.svelte'

theme.apply()
session.begin()
mount(App, { target: document.getElementById('app')! })
