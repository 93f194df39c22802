{{- define "punctual.labels" -}}
app.kubernetes.io/name: punctual
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "punctual.name" -}}
{{ if contains "punctual" .Release.Name }}{{ .Release.Name | trunc 50 }}{{ else }}{{ printf "%s-punctual" .Release.Name | trunc 50 }}{{ end }}
{{- end }}

{{- define "punctual.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "punctual.scheme" -}}
{{ if .Values.secrets.tls }}https{{ else }}http{{ end }}
{{- end }}

{{- /* Postgres, for nodes and for `migrate`. */}}
{{- define "punctual.database" -}}
- name: PUNCTUAL_DATABASE_URL_FILE
  value: /etc/punctual/servers/database-url
{{- end }}

{{- define "punctual.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Where pods may run, for nodes and for `migrate`. */}}
{{- define "punctual.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "punctual.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "punctual.serverVolumes" -}}
- name: servers
  secret: { secretName: {{ .Values.secrets.servers }}, defaultMode: 0440 }
{{- with .Values.secrets.ca }}
- name: ca
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- end }}

{{- define "punctual.serverMounts" -}}
- { name: servers, mountPath: /etc/punctual/servers, readOnly: true }
{{- if .Values.secrets.ca }}
- { name: ca, mountPath: /etc/punctual/ca, readOnly: true }
{{- end }}
{{- end }}
